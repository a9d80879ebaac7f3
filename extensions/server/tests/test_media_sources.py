"""Files and URLs that requests name: only the operator's, and bytes behind it."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from corellm import AsyncLLM
from corellm.errors import MediaError
from corellm.fetch_settings import FetchSettings
from corellm_server.fetching.fetcher import Fetcher
from corellm_server.media_sources import FetchedMedia, read_below
from extensions.server.tests.conftest import chat, data_url, serving, user
from tests.fixtures import random_image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file, a link to it, links out of it, a pipe, and a secret beside it."""
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "a b.png").write_bytes(b"image")
    (folder / "inner").symlink_to("a b.png")
    (folder / "outer").symlink_to("../secret")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe")
    return folder.resolve()


def test_files_in_the_directory(root: Path) -> None:
    """By URL, absolute path, relative path, and a link that stays inside."""
    for name in (f"file://{root}/a%20b.png", f"file:{root}/a%20b.png", f"FILE://localhost{root}/a b.png",
                 f"{root}/a b.png", "a b.png", "sub/../a b.png", "inner"):  # fmt: skip
        assert read_below(root, name) == b"image"


def test_files_elsewhere(root: Path) -> None:
    """One error for all that is not there or not allowed: it does not tell what exists."""
    messages = set()
    for name in ("outer", "up/secret", "../secret", f"{root}/../secret", "/etc/passwd", "file:///etc/passwd",
                 "file:///%2e%2e/etc/passwd", "absent", "loop", "pipe", "sub", "", ".", "/dev/zero",
                 "/proc/self/environ", f"{root}x/y"):  # fmt: skip
        with pytest.raises(MediaError) as caught:
            read_below(root, name)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert not any(secret in told for told in messages for secret in ("secret", "passwd", "/"))
    for name in ("file://other.example/x", "x" * 5000, "a\0b"):
        with pytest.raises(MediaError):
            read_below(root, name)


@pytest.mark.parametrize("replaced", ["inner", "inner/file"])
def test_links_made_after_the_check_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """Where others may write to the directory: the file or its directory becomes a link just before it is opened."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root / "inner", outside / "inner"):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(directory.parent.name.encode())
    assert read_below(root, "inner/file") == b"root"
    resolve = Path.resolve

    def resolved(path: Path, **arguments: Any) -> Path:
        found = resolve(path, **arguments)
        (root / replaced).rename(root / "kept")
        (root / replaced).symlink_to(outside / replaced)
        return found

    monkeypatch.setattr(Path, "resolve", resolved)
    with pytest.raises(MediaError, match="no such file"):
        read_below(root, "inner/file")


def test_files_and_urls_are_the_same_image(llm: AsyncLLM, tmp_path: Path) -> None:
    """A file, a fetched URL and a `data:` URL of the same bytes have the same output."""
    random_image(40, 30, 7).save(tmp_path / "image.png")
    asked: list[tuple[str, str]] = []

    async def fetch(url: str, *, kind: str) -> bytes:
        asked.append((url, kind))
        return (tmp_path / "image.png").read_bytes()

    with serving(llm, fetch, allowed_local_media_path=str(tmp_path)) as running:
        texts = set()
        for name in (data_url(7), "image.png", f"file://{tmp_path}/image.png", "https://example.org/image.png"):
            response = running.post("/v1/chat/completions", chat(user({"image": name}, "what?")))
            texts.add(response.json()["choices"][0]["message"]["content"])
        assert len(texts) == 1
        assert asked == [("https://example.org/image.png", "image")]
        refused = running.post("/v1/chat/completions", chat(user("x", {"image": "../secret"})))
        assert refused.json()["error"]["param"] == "messages[0].content[1]"


def test_an_image_by_http(llm: AsyncLLM) -> None:
    """The real fetcher and a host on the loopback interface, which only this test allows: the output of the bytes."""
    content = base64.b64decode(data_url(7).partition(",")[2])

    class Host(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Host) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        settings = FetchSettings(allowed_media_domains=[f"127.0.0.1:{host.server_port}"])
        allowing = Fetcher(settings, is_allowed=lambda address: address == "127.0.0.1")
        url, texts = f"http://127.0.0.1:{host.server_port}/image.png", []
        with serving(llm, allowing.fetch) as running:
            for name in (data_url(7), url):
                response = running.post("/v1/chat/completions", chat(user({"image": name}, "what?")))
                texts.append(response.json()["choices"][0]["message"]["content"])
        assert texts[0] == texts[1]
        with serving(llm, Fetcher(settings).fetch) as running:
            response = running.post("/v1/chat/completions", chat(user({"image": url}, "what?")))
            assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].content[0]")
            assert "not public" in response.json()["error"]["message"]
        host.shutdown()
        thread.join()


def test_a_failed_fetch_cancels_the_others(llm: AsyncLLM) -> None:
    """The part that failed is named; no other fetch goes on."""
    begun: list[str] = []
    cancelled: list[str] = []

    async def fetch(url: str, *, kind: str) -> bytes:
        if "bad" in url:
            while len(begun) < 2:
                await asyncio.sleep(0)
            raise MediaError("could not fetch")
        begun.append(url)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(url)
            raise
        return b""

    with serving(llm, fetch) as running:
        parts = [
            {"image": "http://example.org/1"},
            {"image": "http://example.org/bad"},
            {"image": "http://example.org/2"},
        ]
        response = running.post("/v1/chat/completions", chat(user(*parts)))
        assert response.json()["error"]["message"] == "messages[0].content[1]: could not fetch"
        assert sorted(cancelled) == ["http://example.org/1", "http://example.org/2"]


def test_what_is_kept_of_urls_is_bounded() -> None:
    """Also where they have next to nothing, and are long themselves; what was used last stays."""
    kept, urls = FetchedMedia(10_000), [f"http://x/{number:01000}" for number in range(50)]
    for url in urls:
        kept.put("", url, b"a")
        kept.put("", url, b"b")
    assert [url for url in urls if kept.get("", url) is not None] == urls[-6:]
    kept.put("", "http://y", b"c" * 20_000)
    assert not any(kept.get("", url) for url in (*urls, "http://y"))
