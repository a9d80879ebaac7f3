"""A connection of uvicorn's, with less work for a token: one write for all that is sent at once, and quick framing.

Knows uvicorn's h11 protocol, which parses requests and bounds their headers; knows no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from corellm_server.errors import ApiError


class HttpConnection(H11Protocol):
    """uvicorn's connection, with `_Sender` in place of h11's."""

    on_made: Callable[[], object] = staticmethod(lambda: None)
    """Called once a client is connected, after the TLS handshake."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve a client."""
        super().connection_made(transport)
        self.conn = _Sender(self.loop, transport)
        self.on_made()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; after a response, as to a request whose body is still coming, there is none left."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = ApiError(400, "this is not a valid HTTP request", code="invalid_http").encoded()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            head = h11.Response(status_code=400, headers=list(headers.items()))
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


class _Sender(h11.Connection):
    """h11's connection; of what is sent before the event loop goes on, it makes one piece.

    uvicorn writes what `send` returns: nothing, until the response ends. Before, the event loop writes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        super().__init__(h11.SERVER)
        self._loop, self._transport = loop, transport
        self._unwritten: list[bytes] = []
        self._is_chunked = False
        """Whether the response in progress is sent in chunks."""

    def next_event(self) -> Any:
        """What came; a body with two lengths is refused, as a proxy may have gone by the one that is not used here.

        Raises:
            h11.RemoteProtocolError: what came is no HTTP.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            lengths = {name for name, _ in event.headers} & {b"transfer-encoding", b"content-length"}
            if len(lengths) > 1:
                raise h11.RemoteProtocolError("a body with two lengths")
        return event

    def send(self, event: Any) -> bytes:  # type: ignore[override]
        """Frame a part of the response; the last one returns all that was not written yet."""
        if self._is_chunked and isinstance(event, h11.Data):
            # h11 would frame it alike, after ten microseconds in its state machine, where it changes nothing
            framed = b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        else:
            self._is_chunked = False
            framed = super().send(event) or b""
            self._is_chunked = isinstance(event, h11.Response) and b"\r\nTransfer-Encoding: chunked\r\n" in framed
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append(framed)
        return self._take() if isinstance(event, h11.EndOfMessage) else b""

    def _take(self) -> bytes:
        taken = b"".join(self._unwritten)
        self._unwritten.clear()
        return taken

    def _write(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._take())
