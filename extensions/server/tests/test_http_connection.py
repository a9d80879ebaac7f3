"""What a connection sends is what h11 frames, in as few writes as the event loop has turns; its bounds are h11's."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import h11
import pytest

from corellm_server.http_connection import _Sender
from extensions.server.tests.conftest import Running, chat, user
from extensions.server.tests.test_promises import CHAT, JSON

HEADS = {
    "chunks": [],
    "a length": [(b"content-length", b"11")],
}


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        """As a transport."""
        self.written.append(data)

    def is_closing(self) -> bool:
        """As a transport."""
        return self.is_closed


def asked(connection: h11.Connection, method: str = "GET", version: str = "1.1") -> h11.Connection:
    """A connection with a request."""
    connection.receive_data(f"{method} / HTTP/{version}\r\nHost: x\r\n\r\n".encode())
    while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
        pass
    return connection


@pytest.mark.parametrize("headers", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(("method", "version"), [("GET", "1.1"), ("GET", "1.0"), ("HEAD", "1.1")])
def test_framing_is_that_of_h11(method: str, version: str, headers: Any) -> None:
    """Byte for byte, also of a second response on the connection; nothing waits when a response has ended."""
    bodies = [] if method == "HEAD" else [b"hello", b"", b" world"]
    events = [
        h11.Response(status_code=200, headers=headers), *(h11.Data(data=body) for body in bodies), h11.EndOfMessage()
    ]  # fmt: skip
    transport: Any = Transport()

    async def respond() -> None:
        own = asked(_Sender(asyncio.get_running_loop(), transport), method, version)
        other = asked(h11.Connection(h11.SERVER), method, version)
        for _ in range(1 if version == "1.0" else 2):
            wanted = b"".join(other.send(event) or b"" for event in events)
            returned = [own.send(event) for event in events]
            assert returned == [b""] * (len(events) - 1) + [wanted]
            if version != "1.0":
                for connection in (own, other):
                    connection.start_next_cycle()
                    asked(connection, method, version)

    asyncio.run(respond())


def test_one_write_per_turn_of_the_event_loop() -> None:
    """What is sent at once is written at once; a closed transport gets nothing."""
    transport: Any = Transport()

    async def stream() -> None:
        own = asked(_Sender(asyncio.get_running_loop(), transport))
        for event in (h11.Response(status_code=200, headers=[]), h11.Data(data=b"one"), h11.Data(data=b"two")):
            own.send(event)
        assert not transport.written
        await asyncio.sleep(0)
        assert [data.count(b"\r\n3\r\none\r\n3\r\ntwo\r\n") for data in transport.written] == [1]
        own.send(h11.Data(data=b"three"))
        await asyncio.sleep(0)
        assert transport.written[1:] == [b"5\r\nthree\r\n"]
        own.send(h11.Data(data=b"four"))
        transport.is_closed = True
        await asyncio.sleep(0)
        assert len(transport.written) == 2

    asyncio.run(stream())


def test_headers_are_bounded(running: Running) -> None:
    """A request whose headers do not end is refused; one with a stream is served after it."""
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert running.post(CHAT, chat(user("hello"), stream=True), headers=JSON).text.endswith("data: [DONE]\n\n")


def exchanged(running: Running, *sent: bytes) -> bytes:
    """What a connection gets until it is closed, for what is sent piece by piece."""
    host, port = running.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        for piece in sent:
            connection.sendall(piece)
            received += connection.recv(1 << 16)
        while more := connection.recv(1 << 16):
            received += more
    return received


def test_a_body_has_one_length(running: Running) -> None:
    """With two, a proxy may have taken for a body what would be a request here: refused, and the connection closed."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    smuggled = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    received = exchanged(running, head.encode() + b"Content-Length: 5\r\n" + chunked + smuggled)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("line", [b"nonsense", b"GET / HTTP/1.1", b"GET /\xff HTTP/1.1\r\nHost: x"])
def test_what_is_no_http_gets_an_error_like_others(running: Running, line: bytes) -> None:
    """It has the shape that every error has."""
    head, _, body = exchanged(running, line + b"\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head.lower()
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_http"


def test_a_wrong_body_after_its_response(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """A client that was refused and then breaks its body's framing is cut off; the log has no traceback of it."""
    head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    received = exchanged(running, head, b"no chunk\r\n")
    assert received.startswith(b"HTTP/1.1 404 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert not [record for record in caplog.records if record.exc_info]
