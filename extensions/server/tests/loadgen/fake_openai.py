"""A server that speaks as much of OpenAI's API as the load generator needs, and does what a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, bytes]
"""Status and body; a body that begins with `data:` is a stream."""


def stream(*parts: dict[str, Any], done: bool = True) -> Reply:
    """A stream of these events."""
    events = [*(json.dumps(part, ensure_ascii=False) for part in parts), *(["[DONE]"] if done else [])]
    return 200, "".join(f"data: {event}\r\n\r\n" for event in events).encode()


def chunk(text: str | None = None, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """One part of an output."""
    content = {"content": text} if text is not None else {}
    return {"choices": [{"index": 0, "delta": {**content, **delta}, "finish_reason": finish_reason}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """The last event, with the numbers of tokens."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def error(status: int, message: str) -> Reply:
    """An error as OpenAI sends it."""
    return status, json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None}}).encode()


THREE_TOKENS = stream(
    chunk("", role="assistant"), chunk("one\u2028"), chunk(" two"), chunk(" three"), chunk(None, "stop"), usage(7, 3)
)


class FakeOpenAI(ThreadingHTTPServer):
    """Replies to the n-th chat completion by `reply(n, body)`; the first one is the generator's check."""

    daemon_threads = False  # closing waits for them, so that no connection is left

    def __init__(self, reply: Callable[[int, dict[str, Any]], Reply], key: str | None, models: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[dict[str, Any]] = []
        self._reply, self._key, self._models = reply, key, models
        self._lock = threading.Lock()

    def handle_call(self, path: str, key: str | None, body: bytes) -> Reply:
        """What is sent back."""
        if self._key is not None and key != f"Bearer {self._key}":
            return error(401, "wrong key")
        if path == "/v1/models":
            return self._models
        if path != "/v1/chat/completions":
            return error(404, "no such route")
        with self._lock:
            self.bodies.append(json.loads(body))
            return self._reply(len(self.bodies) - 1, self.bodies[-1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeOpenAI

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, content = self.server.handle_call(self.path, self.headers.get("Authorization"), body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


MODELS = (200, json.dumps({"data": [{"id": "fake"}, {"id": "other"}]}).encode())


@contextmanager
def fake_openai(
    reply: Callable[[int, dict[str, Any]], Reply] = lambda n, body: THREE_TOKENS,
    *,
    key: str | None = None,
    models: Reply = MODELS,
) -> Iterator[FakeOpenAI]:
    """A listening fake, in threads of its own."""
    with FakeOpenAI(reply, key, models) as fake:
        thread = threading.Thread(target=fake.serve_forever)
        thread.start()
        try:
            yield fake
        finally:
            fake.shutdown()
            thread.join()
