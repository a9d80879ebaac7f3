"""Media over HTTP that are broken, odd, or bombs, and hosts that are: each costs its own request at most."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from corellm import AsyncLLM
from corellm.fetch_settings import FetchSettings
from corellm_server.fetching.fetcher import Fetcher
from extensions.media.tests import test_audio, test_video_files
from extensions.server.tests.command import CHAT, Command, cmdline, command
from extensions.server.tests.conftest import Running, chat, data_url, serving, user
from extensions.server.tests.fetching.hosts import (
    HOME,
    Names,
    Respond,
    listening_in_thread,
    ok,
    redirect,
    responding,
    silent,
)
from extensions.server.tests.footprint import Footprint, assert_no_leak
from extensions.server.tests.test_process_faults import PATIENCE, within
from tests.fixtures import wait_until
from tests.media import test_image
from tests.media.test_image_cost import jpeg_of_scans

MOST_GROWTH = 768 << 20
HARMLESS = ("edits", "run lengths")
"""Bombs that FFmpeg may read like any other file."""
DECODERS = 2
CHOSEN = ("png", "jpeg", "gif frame", "webp")
"""The bombs that are tried each time; the others at full scale."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A server that takes images of a megapixel and videos, decodes two files at once for five seconds at most, and
    has been in use.
    """
    from corellm_qwen_vl.tiny import make_tiny_checkpoint

    folder = tmp_path_factory.mktemp("media")
    options = {"media_timeout": 5, "media_workers": DECODERS, "max_image_pixels": 10**6}
    with command(make_tiny_checkpoint(folder / "model"), folder, **options) as running:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda seed: running.http.post(CHAT, json=about(seed)), range(8)))
        yield running


def about(seed: int) -> dict[str, Any]:
    """A request about an image."""
    return chat(user({"image": data_url(seed)}, "what?"))


@contextmanager
def unharmed(running: Command, seconds: float = 600.0, *, memory: bool = False) -> Iterator[None]:
    """The canary has the output that it had before, and nothing is left some seconds later."""
    before, text = Footprint.of(running.process.pid, running.http), running.text_of({"image": data_url(7)}, "what?")
    yield
    assert running.text_of({"image": data_url(7)}, "what?") == text
    assert_no_leak(running.process.pid, running.http, before, seconds, memory=memory)


def post(running: Command, modality: str, data: bytes) -> httpx.Response:
    """The response to a request with these bytes."""
    url = f"data:{modality}/x;base64,{base64.b64encode(data).decode()}"
    with httpx.Client(base_url=running.http.base_url, timeout=600) as client:
        return client.post(CHAT, json=chat(user("see", {modality: url})))


def assert_refused(response: httpx.Response, name: str) -> None:
    """It is a client's error that names the part."""
    assert response.status_code == 400, (name, response.text)
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[1]", name
    assert 0 < len(error["message"]) <= 1000


def test_row_10_broken_truncated_and_foreign_media(served: Command) -> None:
    """400, and never an output about half of it."""
    foreign = [b"\0", b"hello there " * 9, b"%PDF-1.7\n" + bytes(100), b"<svg xmlns='http://www.w3.org/2000/svg'/>",
               b"#EXTM3U\nhttp://127.0.0.1/\n", b"v=0\r\nc=IN IP4 127.0.0.1\r\nm=video 9 RTP/AVP 96\r\n"]  # fmt: skip
    with unharmed(served):
        for name, data in test_image.FILES.items():
            for end in (20, len(data) // 2, len(data) - 30):
                assert_refused(post(served, "image", data[:end]), name)
        video = test_video_files.small_file("gif")
        assert_refused(post(served, "video", video[: len(video) // 2]), "video")
        for modality in ("image", "video"):
            for data in foreign:
                assert_refused(post(served, modality, data), data[:10].decode())


def test_row_11_odd_media_have_their_stated_size(served: Command) -> None:
    """As many tokens as a plain image of that size, and for the same pixels the same output."""
    plain = Image.effect_noise((64, 112), 80).convert("P").convert("RGB")
    turned = Image.Exif()
    turned[274] = 6  # is to be turned by a quarter
    same: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "RGBA": (plain.convert("RGBA"), {"format": "PNG"}), "BMP": (plain, {"format": "BMP"}),
        "interlaced": (plain, {"format": "PNG", "interlace": 1}), "TIFF": (plain, {"format": "TIFF"}),
        "turned": (plain.transpose(Image.Transpose.ROTATE_90), {"format": "PNG", "exif": turned}),
    }  # fmt: skip

    def asked(image: Image.Image, **options: Any) -> tuple[int, str]:
        stream = io.BytesIO()
        image.save(stream, **options)
        response = post(served, "image", stream.getvalue())
        assert response.status_code == 200, response.text
        body = response.json()
        return body["usage"]["prompt_tokens"], body["choices"][0]["message"]["content"]

    wanted = asked(plain, format="PNG")
    assert {name: asked(image, **options) for name, (image, options) in same.items()} == dict.fromkeys(same, wanted)
    assert asked(plain.convert("CMYK"), format="JPEG")[0] == asked(plain.convert("I;16"), format="PNG")[0] == wanted[0]
    assert asked(plain.resize((112, 112)), format="PNG")[0] > wanted[0]


def growth(running: Command, before: Footprint) -> int:
    """Bytes by which memory grew at most: the sum over processes, of which some are new."""
    now = Footprint.of(running.process.pid, running.http).processes
    return sum(
        process.peak - (before.processes[pid].peak if pid in before.processes else 0) for pid, process in now.items()
    )


def test_row_12_bombs(served: Command) -> None:
    """400, and others are served."""
    with unharmed(served):
        for name in CHOSEN:
            assert_refused(post(served, "image", test_image.BOMBS[name]), name)


@pytest.mark.full
def test_row_12_all_bombs(served: Command) -> None:
    """400 in 2 s, images and videos, and memory grows by less than 768 MB."""
    bombs = {("image", name): data for name, data in test_image.BOMBS.items()}
    bombs |= {("video", name): data for name, data in test_video_files.bombs(test_video_files.one_second()).items()}
    with unharmed(served, memory=True):
        before = Footprint.of(served.process.pid, served.http)
        for (modality, name), data in bombs.items():
            with within(2):
                response = post(served, modality, data)
            if name not in HARMLESS:
                assert_refused(response, name)
            assert response.status_code in (200, 400)
        assert growth(served, before) < MOST_GROWTH


@pytest.mark.full
def test_row_12_bombs_of_audio(tmp_path: Path) -> None:
    """400 for audio that says, or does not say, how long it is."""
    from corellm_qwen_audio.tiny import make_tiny_checkpoint

    flac = test_audio.encoded(test_audio.np.zeros((48_000 * 60, 8), "int16"), 48_000, "FLAC")
    with command(make_tiny_checkpoint(tmp_path / "model"), tmp_path, max_audio_seconds=20) as running:
        for frames in (0, 48_000 * 60, 2**36 - 1):
            with within(2):
                assert_refused(post(running, "audio", test_audio.with_flac_length(flac, frames)), str(frames))
        assert post(running, "audio", test_audio.FILES["WAV"]).status_code == 200


def media_children(running: Command) -> list[int]:
    """The processes that decode."""
    seen = Footprint.of(running.process.pid, running.http)
    return [pid for pid, process in seen.processes.items() if process.kind == "media"]


def test_row_13_decoders_that_hang_or_crash(served: Command) -> None:
    """400 when the time is up, and for the file whose decoder was killed; the next images are read.

    A file that got no decoder in that time may be good: it gets a 503.
    """
    scans = jpeg_of_scans(100_000, Image.new("L", (1000, 1000)))  # 1.2 MB, fifty seconds of decoding
    with unharmed(served):
        count = DECODERS + 1  # each that gets a decoder keeps it busy for five seconds
        with ThreadPoolExecutor(count) as pool:
            responses = list(pool.map(lambda _: post(served, "image", scans), range(count)))
        assert {400} <= {response.status_code for response in responses} <= {400, 503}
        for response in responses:
            if response.status_code == 503:
                assert response.headers["retry-after"]
            else:
                assert_refused(response, "scans")
        with ThreadPoolExecutor(4) as pool:  # a decoder that is killed while it starts is the server's fault: a 500
            list(pool.map(lambda seed: served.http.post(CHAT, json=about(seed)), range(20, 28)))
            hanging = pool.submit(post, served, "image", scans)
            wait_until(lambda: any(map(is_busy, media_children(served))))
            for pid in media_children(served):
                os.kill(pid, signal.SIGSEGV)
            assert_refused(hanging.result(600), "killed")


def is_busy(pid: int) -> bool:
    """Whether a process runs now."""
    return b"media" in cmdline(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


@pytest.mark.full
def test_large_requests_leave_no_memory(served: Command) -> None:
    """Chunks of bodies that come at once lie in the heap between blocks that stay, and go back all the same."""
    with unharmed(served, seconds=5, memory=True), ThreadPoolExecutor(8) as pool:
        for response in pool.map(lambda _: post(served, "image", bytes(25 << 20)), range(8)):
            assert_refused(response, "zeros")


# --- row 15: hosts --------------------------------------------------------------------------------------------------


async def endless(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(65536))
        await writer.drain()


async def looping(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(redirect(head.split()[1].decode() + "x"))
    await writer.drain()


async def dropping(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


HOSTS: dict[str, Respond] = {
    "slow": silent, "huge": endless, "looping": looping, "gone": dropping,
    "short": responding(ok(b"x" * 100)[:-50]), "no image": responding(ok(b"hello")),
}  # fmt: skip


@PATIENCE
@pytest.mark.parametrize("name", HOSTS)
def test_row_15_hosts_that_are_slow_huge_or_gone(llm: AsyncLLM, name: str, patience: int) -> None:
    """400 at the deadline or the cap, naming the part; others are served."""

    def output(running: Running) -> Any:
        return running.post(CHAT, chat(user("hello"))).json()["choices"]

    with listening_in_thread(HOSTS[name]) as host:
        settings = FetchSettings(
            allowed_media_domains=[f"media.test:{host.port}"], fetch_timeout=1, max_fetch_bytes=1 << 20
        )
        fetcher = Fetcher(settings, resolve=Names(media_test=[HOME]), is_allowed=lambda address: True)
        with serving(llm, fetcher.fetch) as running:
            canary = output(running)
            with within(2 * patience):
                refused = running.post(CHAT, chat(user("see", {"image": f"http://media.test:{host.port}/x"})))
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["param"] == "messages[0].content[1]"
            assert "127.0.0.1" not in refused.text
            assert output(running) == canary
