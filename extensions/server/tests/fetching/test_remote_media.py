"""URLs in conversations in Python: the files of allowed hosts, by the rules and errors of the server's fetcher."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.errors import ItemLimitError, MediaError, MissingExtraError, ProcessingError
from corellm.fetch_settings import FetchSettings
from corellm.loading import opening
from corellm_server.fetching import remote_media
from corellm_server.fetching.fetcher import Fetcher
from corellm_server.fetching.remote_media import MOST_URLS, RemoteMedia
from extensions.server.tests.fetching.hosts import (
    HOME,
    Host,
    Names,
    listening_in_thread,
    ok,
    redirect,
    responding,
    silent,
)
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LIMITS = {"max_fetch_bytes": 1 << 16, "fetch_timeout": 1.0}


def png(seed: int = 1) -> bytes:
    """An image of 40 x 30."""
    written = io.BytesIO()
    random_image(40, 30, seed).save(written, "png")
    return written.getvalue()


def asking(*images: Any) -> list[dict[str, Any]]:
    """A conversation about images, of which strings are in OpenAI's form."""
    parts = [
        {"type": "image_url", "image_url": {"url": image}} if isinstance(image, str) else {"image": image}
        for image in images
    ]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What shape?"}]}]


def normalized(*urls: str) -> list[dict[str, Any]]:
    """The same as families get it."""
    return [{"role": "user", "content": [{"type": "image", "image": url} for url in urls]}]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host that redirects, has files that are too large or broken, and never responds at `/silent`."""
    responses = {
        "/image.png": ok(png()), "/large.png": ok(bytes(1 << 17)), "/gone.png": b"HTTP/1.1 404 Not Found\r\n\r\n",
        "/inside": redirect("http://10.0.0.1/"), "/elsewhere": redirect("http://other.test/"), "/text": ok(b"hello"),
    }  # fmt: skip

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        path = head.split()[1].decode()
        await (silent if path == "/silent" else responding(responses[path]))(head, writer)

    with listening_in_thread(respond) as listening:
        yield listening


@pytest.fixture(scope="module")
def make_fetcher() -> Iterator[Callable[..., Fetcher]]:
    """Fetchers to which `media.test` is the loopback interface, and that public."""
    resolve = Names(media_test=[HOME], inside_test=[("10.0.0.1",)])
    made = partial(Fetcher, resolve=resolve, is_allowed=lambda address: address == "127.0.0.1")
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(remote_media, "Fetcher", made)
        yield made


@pytest.fixture(scope="module")
def settings(host: Host) -> FetchSettings:
    """What is allowed."""
    return FetchSettings(allowed_media_domains=[f"media.test:{host.port}", "inside.test", "10.0.0.1"], **LIMITS)


@pytest.fixture(scope="module")
def llm(tiny_llava: Path, settings: FetchSettings, make_fetcher: Any) -> Iterator[LLM]:
    allowed = list(settings.allowed_media_domains)
    options: dict[str, Any] = {"limit_mm_per_prompt": {"image": 3}, "dtype": "float32", **LIMITS}
    with LLM(str(tiny_llava), allowed_media_domains=allowed, **options) as loaded:
        yield loaded


def tokens(llm: LLM, messages: Any, **options: Any) -> list[list[int]]:
    """The output of each conversation."""
    return [list(o.outputs[0].token_ids) for o in llm.chat(messages, GREEDY, use_tqdm=False, **options)]


def test_a_url_is_the_file(llm: LLM, host: Host) -> None:
    """The output of the bytes, in both forms of a part, of several conversations at once, and with a window."""
    url, content = f"http://media.test:{host.port}/image.png", png()
    (want,) = tokens(llm, asking(content))
    plain = [{"role": "user", "content": [{"image": url}, "What shape?"]}]
    assert tokens(llm, [asking(url), plain, asking(content)]) == [want] * 3
    assert tokens(llm, asking(url, png(2), url)) == tokens(llm, asking(content, png(2), content))
    assert tokens(llm, asking(url), max_window_size=200) == [want]


def test_within_a_running_event_loop(llm: LLM, host: Host) -> None:
    """As in a notebook."""

    async def main() -> list[list[int]]:
        return tokens(llm, asking(f"http://media.test:{host.port}/image.png"))

    assert asyncio.run(main()) == tokens(llm, asking(png()))


@pytest.mark.usefixtures("make_fetcher")
def test_coroutines_fetch_too(tiny_llava: Path, settings: FetchSettings, host: Host) -> None:
    """`AsyncLLM` has the same argument; a conversation that waits for its host holds up no other."""
    url, held_up = f"http://media.test:{host.port}/image.png", f"http://media.test:{host.port}/silent"

    async def output(llm: AsyncLLM, image: Any) -> list[int]:
        found: list[int] = []
        async for each in llm.chat(asking(image), GREEDY):
            found = list(each.outputs[0].token_ids)
        return found

    async def main() -> None:
        allowed = settings.allowed_media_domains
        async with AsyncLLM(str(tiny_llava), dtype="float32", allowed_media_domains=allowed) as llm:
            waiting = [asyncio.ensure_future(output(llm, held_up)) for _ in range(8)]
            assert await output(llm, url) == await output(llm, png())
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    [
        "http://media.test:PORT/large.png", "http://media.test:PORT/silent", "http://media.test:PORT/gone.png",
        "http://media.test:PORT/inside", "http://media.test:PORT/elsewhere", "http://inside.test/", "http://10.0.0.1/",
        "http://media.test:1/", "HTTP://other.test/", "https://user@media.test/", "http://2130706433/",
    ],
)  # fmt: skip
def test_errors_are_the_fetchers_own(
    llm: LLM, host: Host, settings: FetchSettings, make_fetcher: Callable[..., Fetcher], url: str
) -> None:
    """Errors have the type and words that a server's clients get and name the item; the other conversation is done."""
    url = url.replace("PORT", str(host.port))

    async def directly() -> MediaError:
        fetcher = make_fetcher(settings)
        with pytest.raises(MediaError) as refused:
            await fetcher.fetch(url, kind="image")
        return refused.value

    expected = asyncio.run(directly())
    failed, done = llm.chat([asking(png(), url), asking(png())], GREEDY, use_tqdm=False, on_error="return")
    assert done.error is None
    assert type(failed.error) is type(expected)
    assert str(failed.error) == f"image 1: {expected}"
    assert isinstance(failed.error, MediaError)
    assert (failed.error.modality, failed.error.item) == ("image", 1)


def test_what_is_no_image_is_refused_as_bytes_are(llm: LLM, host: Host) -> None:
    """After it was fetched."""
    errors = []
    for image in (f"http://media.test:{host.port}/text", b"hello"):
        with pytest.raises(MediaError) as refused:
            tokens(llm, asking(image))
        errors.append(str(refused.value))
    assert errors[0] == errors[1]


def test_too_many_items_are_refused_before_the_first_is_fetched(llm: LLM, host: Host) -> None:
    """No host is asked."""
    before = host.num_connections
    with pytest.raises(ItemLimitError):
        tokens(llm, asking(*[f"http://media.test:{host.port}/image.png"] * 4))
    assert host.num_connections == before


def test_a_conversation_has_so_many_urls(host: Host, make_fetcher: Any, settings: FetchSettings) -> None:
    """More are refused before the first is fetched: their files are held together."""
    before, media = host.num_connections, RemoteMedia(settings)
    with pytest.raises(MediaError, match=str(MOST_URLS)):
        media.load(normalized(*[f"http://media.test:{host.port}/image.png"] * (MOST_URLS + 1)))
    assert host.num_connections == before


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, make_fetcher: Any) -> None:
    """Is an error, no wait for ever, and the next download may have one."""
    media = RemoteMedia(FetchSettings(allowed_media_domains=["media.test"]))

    def fail(main: Any) -> None:
        main.close()
        raise OSError("no descriptors")

    with monkeypatch.context() as patching:
        patching.setattr("corellm_server.fetching.fetch_thread.asyncio.run", fail)
        with pytest.raises(ProcessingError, match="no descriptors"):
            media.load(normalized("http://media.test/"))
    with pytest.raises(MediaError):
        media.load(normalized("http://other.test/"))
    media.close()


def test_without_allowed_hosts_the_argument_is_named(tiny_llava: Path, host: Host) -> None:
    """And nothing is fetched; an empty list allows none."""
    before = host.num_connections
    with (
        LLM(str(tiny_llava), dtype="float32", allowed_media_domains=[]) as llm,
        pytest.raises(MediaError, match=r"allowed_media_domains=") as refused,
    ):
        tokens(llm, asking(f"http://127.0.0.1:{host.port}/image.png"))
    assert (refused.value.modality, refused.value.item) == ("image", 0)
    assert host.num_connections == before


def test_the_loopback_interface_is_private(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is allowed, where no test says otherwise."""
    monkeypatch.setattr(remote_media, "Fetcher", Fetcher)
    media, before = RemoteMedia(FetchSettings(allowed_media_domains=[f"*:{host.port}"])), host.num_connections
    with pytest.raises(MediaError):
        media.load(normalized(f"http://127.0.0.1:{host.port}/image.png"))
    assert host.num_connections == before
    media.close()


@pytest.mark.usefixtures("make_fetcher")
def test_threads_share_the_limit_of_downloads() -> None:
    """Two threads, one download at a time: the second begins when the first has ended."""
    open_now, most = 0, 0

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(50):
            await asyncio.sleep(0)
        open_now -= 1
        await responding(ok(b"x"))(head, writer)

    with listening_in_thread(respond) as host, ThreadPoolExecutor(4) as threads:
        allowed = [f"media.test:{host.port}"]
        media = RemoteMedia(FetchSettings(allowed_media_domains=allowed, max_concurrent_fetches=1))
        conversations = [normalized(*[f"http://media.test:{host.port}/"] * 3) for _ in range(4)]
        list(threads.map(media.load, conversations))
        assert all(part["image"] == b"x" for (message,) in conversations for part in message["content"])
        assert (most, host.num_connections) == (1, 12)
        media.close()


def test_a_failed_download_cancels_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads that have begun are cancelled when another one fails."""
    cancelled = threading.Event()

    class OneFails:
        def __init__(self, settings: FetchSettings) -> None:
            self.begun = asyncio.Event()

        async def fetch(self, url: str, *, kind: str) -> bytes:
            if "bad" in url:
                await self.begun.wait()
                raise MediaError("could not fetch")
            self.begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return b""

    monkeypatch.setattr(remote_media, "Fetcher", OneFails)
    media = RemoteMedia(FetchSettings(allowed_media_domains=["media.test"]))
    with pytest.raises(MediaError) as refused:
        media.load(normalized("http://media.test/bad", "http://media.test/"))
    assert refused.value.item == 0
    assert cancelled.wait(600)
    media.close()


@pytest.mark.usefixtures("make_fetcher")
def test_closing_ends_downloads() -> None:
    """Their threads get an error at once, and later ones too."""
    asked = threading.Event()

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()

    with listening_in_thread(respond) as host, ThreadPoolExecutor(1) as threads:
        media = RemoteMedia(FetchSettings(allowed_media_domains=[f"media.test:{host.port}"]))
        loading = threads.submit(media.load, normalized(f"http://media.test:{host.port}/"))
        assert asked.wait(600)
        media.close()
        with pytest.raises(ProcessingError):
            loading.result(600)
    with pytest.raises(ProcessingError):
        media.load(normalized(f"http://media.test:{host.port}/"))
    media.close()


@pytest.mark.usefixtures("make_fetcher")
def test_the_thread_ends_with_its_owner() -> None:
    """Also if nobody closes it."""
    before = set(threading.enumerate())
    media = RemoteMedia(FetchSettings(allowed_media_domains=["media.test"]))
    assert set(threading.enumerate()) == before
    with pytest.raises(MediaError):
        media.load(normalized("http://other.test/"))
    (thread,) = set(threading.enumerate()) - before
    del media
    gc.collect()
    thread.join(600)
    assert not thread.is_alive()


def test_fetching_is_an_extensions(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is installed, the error says when the model is loaded what to install."""
    monkeypatch.setattr(opening, "first_result", lambda hook, *_, **__: None)
    with pytest.raises(MissingExtraError, match=r"allowed_media_domains needs corellm-server.*extensions/server"):
        LLM(str(tiny_llava), dtype="float32", allowed_media_domains=["example.org"])
