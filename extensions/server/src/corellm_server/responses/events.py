"""Server-sent events: a stream of JSON objects that ends as its API has it (`[DONE]`), or with an error.

A slow reader holds up the stream, not the engine: outputs that it did not read yet are joined.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corellm_server.errors import as_api_error
from corellm_server.exchange import EVENTS, exchange_of

_Output = TypeVar("_Output")
_LINE_SEPARATORS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"), ("\x85".encode(), b"\\u0085"))
"""Separators of Unicode at which clients that read with `str.splitlines` would end an event, and their escapes."""
_HEADERS = [
    (b"content-type", EVENTS + b"; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx holds events back
]


class EventStream(Response):
    """A response of events.

    Args:
        first: the first event, which was waited for: an error before it is a response of its own.
        later: the others.
    """

    def __init__(self, first: dict[str, Any] | None, later: AsyncGenerator[dict[str, Any], None]) -> None:
        super().__init__()
        self._first, self._later = first, later

    @classmethod
    async def begun(
        cls, outputs: AsyncGenerator[_Output, None], make: Callable[[_Output], Iterable[dict[str, Any]]]
    ) -> EventStream:
        """A response whose first event is there.

        Args:
            outputs: of the engine; closed with the response.
            make: an output to its events.

        Raises:
            BaseException: what making the first event raised.
        """
        return await cls.of(events_of(outputs, make))

    @classmethod
    async def of(cls, events: AsyncGenerator[dict[str, Any], None]) -> EventStream:
        """A response whose first event is there; the events are closed with it."""
        return cls(await anext(events, None), events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; an error becomes the last one."""
        exchange = exchange_of(scope)
        async with contextlib.aclosing(self._later) as later:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                if self._first is not None:
                    await send(_message(self._first))
                async for event in later:
                    await send(_message(event))
            except ConnectionError:
                raise
            except Exception as error:
                await exchange.fail(as_api_error(error))
            else:
                await send({"type": "http.response.body", "body": exchange.dialect.end})


async def events_of(
    outputs: AsyncGenerator[_Output, None], make: Callable[[_Output], Iterable[dict[str, Any]]]
) -> AsyncGenerator[dict[str, Any], None]:
    """The events that outputs become."""
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            for event in make(output):
                yield event


def encoded(event: dict[str, Any]) -> bytes:
    """An event as it is sent; one with a type has it as its name."""
    name = f"event: {event['type']}\n".encode() if "type" in event else b""
    data = msgspec.json.encode(event)
    for separator, escaped in _LINE_SEPARATORS:
        data = data.replace(separator, escaped)
    return name + b"data: " + data + b"\n\n"


def _message(event: dict[str, Any]) -> dict[str, object]:
    return {"type": "http.response.body", "body": encoded(event), "more_body": True}
