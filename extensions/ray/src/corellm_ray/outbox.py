"""Outputs of one server's requests in a replica that wait to be sent, in one message for all requests.

Knows outputs, and when they are sent; knows neither the engine nor Ray.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

from corellm.engine.process.messages import Delta
from corellm.engine.process.messages import encode as encoded

JOIN_SECONDS = 0.02
"""Least time between two messages: each takes about half a millisecond of a core on either side. The first output of a
request waits for nothing, nor does the last one, which is no part of these messages."""
IDLE_SECONDS = 1.0
"""Seconds after the last request until the stream of messages ends. Ray Serve counts the stream as a request, and a
replica drains until it has none."""


class Outbox:
    """Outputs that wait to be sent.

    Args:
        to_delta: what is new in an output.
    """

    def __init__(self, to_delta: Callable[[Any], Delta]) -> None:
        self._to_delta = to_delta
        self._waiting: dict[str, Any] = {}
        self._num_sent: dict[str, int] = {}
        """Numbers of messages that had outputs of each request."""
        self._has_news, self._is_urgent = asyncio.Event(), asyncio.Event()
        self._idle_since = time.monotonic()
        self.is_read = False
        """Whether messages are sent."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no request."""
        return not self._num_sent

    def begin(self, number: str) -> None:
        """Take a request's outputs from now on, by its number."""
        self._num_sent[number] = 0

    def put(self, number: str, output: Any) -> None:
        """Have an output sent, joined with those of the request that wait."""
        self._waiting[number] = self._joined(number, output)
        self._has_news.set()
        if not self._num_sent[number]:
            self._is_urgent.set()

    def last(self, number: str, output: Any) -> tuple[Delta, int]:
        """Return the outputs of a request that were not sent, and the number of messages that had the others."""
        return self._to_delta(self._joined(number, output)), self._num_sent[number]

    def num_sent(self, number: str) -> int:
        """Return the number of messages that had outputs of a request."""
        return self._num_sent[number]

    def end(self, number: str) -> None:
        """Forget a request."""
        self._waiting.pop(number, None)
        self._num_sent.pop(number)
        self._idle_since = time.monotonic()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Encoded lists of deltas, each with its request's number as id; ends when there was no request for a while."""
        self.is_read, sent = True, 0.0
        while self._waiting or not self.is_idle or time.monotonic() - self._idle_since < IDLE_SECONDS:
            await _set_within(self._has_news, IDLE_SECONDS)
            await _set_within(self._is_urgent, sent + JOIN_SECONDS - time.monotonic())
            self._has_news.clear()
            self._is_urgent.clear()
            if self._waiting:  # it may have gone with its request's end
                sent = time.monotonic()
                yield encoded(self._taken())

    def _joined(self, number: str, output: Any) -> Any:
        waiting = self._waiting.pop(number, None)
        return output if waiting is None else waiting.followed_by(output)

    def _taken(self) -> list[Delta]:
        waiting, self._waiting = self._waiting, {}
        deltas = []
        for number, output in waiting.items():
            self._num_sent[number] += 1
            output.request_id = number
            deltas.append(self._to_delta(output))
        return deltas


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, so long at most."""
    if seconds > 0 and not event.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
