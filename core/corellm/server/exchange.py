"""One request and its response, as the gate and the endpoints share them.

Knows ASGI messages: whether a response began, whether it is a stream of events, which headers it gets. Knows no routes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from corellm.outputs import RequestOutput
from corellm.server.errors import ApiError
from corellm.server.form import read_form
from corellm.server.json_text import VALUE_BYTES, count_values, read_object
from corellm.server.options import RequestLimits
from corellm.server.stages import note_stages

_SANE_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_LARGE_BYTES = 1 << 16
"""Of a response that may be kept for a client after its request has ended."""
EVENTS = b"text/event-stream"


class Exchange:
    """A request, what the server knows of it, and how far its response is.

    Args:
        scope: of ASGI.
        send: of ASGI.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _SANE_ID.fullmatch(given) else secrets.token_hex(12)
        """The client's id if it is sane, else a new one: for logs and the response's header, never for the engine."""
        self.salt: str | None = None
        """Separates the caches of clients with different keys."""
        self.body: dict[str, Any] = {}
        self.num_bytes = 0
        """Bytes that the intake counts for it."""
        self.began = time.monotonic()
        self.status = 0
        """Of the response, once it began."""
        self.failure: ApiError | None = None
        """What the client was told went wrong."""
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.stages = note_stages()
        """What was done for it before the engine, and when."""
        self.outputs: list[RequestOutput] = []
        """The last output of each of its prompts, when they ended."""
        self.ended: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        """Set when it must end early: None if the client is not there any more."""
        self.error_events: Callable[[ApiError], bytes] = _error_event
        """How a stream that began tells of an error."""
        self._send = send
        self._is_events = False
        self.is_complete = False
        """Whether the whole response was sent."""
        scope["corellm"] = self

    def stop(self, reason: ApiError | None) -> None:
        """End it early, and tell the client why; None if there is no client any more."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def send(self, message: Message) -> None:
        """Send a part of the response; the first one gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_events = any(name == b"content-type" and EVENTS in value for name, value in message["headers"])
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
        elif not message.get("more_body"):
            if len(message.get("body", b"")) > _LARGE_BYTES:
                # its end is sent once the client has read most of it: a response that nobody reads stays one that is
                # counted, and that a deadline ends
                await self._send({**message, "more_body": True})
                await asyncio.sleep(0)  # now it is written
                message = {"type": "http.response.body"}
            self.is_complete = True
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """Tell the client of an error: as the response, as an event of a stream that began, or by cutting it off."""
        self.failure = self.failure or error
        if self.is_complete:
            return
        if self.status:
            event = self.error_events(error) if self._is_events else b""
            await self.send({"type": "http.response.body", "body": event})
            return
        body = error.encoded()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})

    async def read_body(self, receive: Receive, limits: RequestLimits, hold: Any, *, is_form: bool = False) -> None:
        """Read the request's JSON or form, and stop as soon as it is too large.

        Args:
            receive: of ASGI.
            limits: of bytes, time and depth.
            hold: counts bytes, may refuse them.
            is_form: whether it must be a form, else JSON.

        Raises:
            ApiError: 413, 415, 408 or 400.
            ConnectionError: the client left.
        """
        content_type = self.headers.get(b"content-type", b"")
        wanted, name = (b"multipart/form-data", "a form") if is_form else (b"application/json", "JSON")
        kind = content_type.split(b";")[0].strip().lower()
        if kind != wanted or self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError(415, f"the body must be {name}: Content-Type: {wanted.decode()}, without a Content-Encoding")
        announced = self.headers.get(b"content-length", b"")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limits.max_body_bytes):
            raise _too_large(limits)
        chunks: list[bytes] = []
        num_bytes, values_left = 0, limits.max_json_values
        try:
            async with asyncio.timeout(limits.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError("the client left")
                    chunk = message.get("body", b"")
                    num_values = 0 if is_form else count_values(chunk)
                    num_bytes, values_left = num_bytes + len(chunk), values_left - num_values
                    if num_bytes > limits.max_body_bytes:
                        raise _too_large(limits)
                    if values_left < 0:  # a few million would keep the event loop busy for seconds
                        raise _too_many_values(limits)
                    held = len(chunk) + VALUE_BYTES * num_values
                    hold(held)
                    self.num_bytes += held
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise ApiError(408, "the request did not arrive in time", headers={"Connection": "close"}) from None
        whole = b"".join(chunks)
        self.body = read_form(whole, content_type) if is_form else read_object(whole, max_depth=limits.max_json_depth)


def _error_event(error: ApiError) -> bytes:
    return b"data: " + error.encoded() + b"\n\n"


def _too_large(limits: RequestLimits) -> ApiError:
    return ApiError(
        413,
        f"the request is larger than the {limits.max_body_bytes} bytes allowed; send fewer or smaller items",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _too_many_values(limits: RequestLimits) -> ApiError:
    return ApiError(
        400,
        f"invalid JSON: it has more than the {limits.max_json_values} values allowed",
        code="invalid_json",
        headers={"Connection": "close"},
    )
