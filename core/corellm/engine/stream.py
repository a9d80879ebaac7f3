"""The stream of one request's outputs, from the engine's thread to the coroutine that reads them.

Knows event loops and outputs; knows no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from corellm.outputs import RequestOutput
from corellm.sampling_params import RequestOutputKind


class Stream:
    """Holds a request's newest output for the coroutine that reads it.

    A slow reader gets only the newest and misses nothing: outputs are cumulative, or deltas that are joined.
    """

    def __init__(self, request_id: str, kind: RequestOutputKind) -> None:
        self._joins = kind is RequestOutputKind.DELTA
        self.request_id = request_id
        """The caller's name for the request."""
        self.is_aborted = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._newest: RequestOutput | BaseException | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the reader's event loop was closed."""
        return self._loop.is_closed()

    def put(self, item: RequestOutput | BaseException) -> bool:
        """Set the newest output, from any thread; returns False if the event loop was closed."""
        try:
            self._loop.call_soon_threadsafe(self._set, item)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def _set(self, item: RequestOutput | BaseException) -> None:
        newest = self._newest if isinstance(self._newest, RequestOutput) else None
        if newest is not None and newest.finished:  # a final output stays
            item = newest
        elif self._joins and newest is not None and self._changed.is_set() and isinstance(item, RequestOutput):
            item = newest.followed_by(item)  # the newest one is unread
        self._newest = item
        self._changed.set()

    async def get(self) -> RequestOutput:
        """Wait for the next output.

        Raises:
            BaseException: an error that was put instead of an output.
        """
        await self._changed.wait()
        self._changed.clear()
        item = self._newest
        assert item is not None
        if isinstance(item, BaseException):
            raise item
        return item


def put_all(outputs: Iterable[tuple[Stream, RequestOutput]]) -> bool:
    """Set the newest outputs of streams, from any thread; returns False if an event loop was closed.

    Each event loop is woken once, however many of its streams get an output.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, RequestOutput]]] = {}
    for stream, output in outputs:
        by_loop.setdefault(stream._loop, []).append((stream, output))
    is_open = True
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, own)
        except RuntimeError:  # the loop was closed
            is_open = False
    return is_open


def _set_all(outputs: Iterable[tuple[Stream, RequestOutput]]) -> None:
    for stream, output in outputs:
        stream._set(output)
