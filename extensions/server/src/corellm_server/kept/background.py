"""A response that is made without its client: it goes on when that leaves, and is stopped by id, by time or at the end.

Knows events and how they are followed; where the response is kept is known to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from corellm.outputs import RequestOutput
from corellm_server.errors import ApiError, as_api_error, timed_out
from corellm_server.intake import Intake
from corellm_server.responses.model_response import ModelResponse
from corellm_server.tasks import cancelled

Outputs = AsyncGenerator[RequestOutput, None]
Keep = Callable[[dict[str, Any], bytes], Awaitable[None]]
"""Keeps a whole response, and all events of its stream as JSON."""


class BackgroundRun:
    """A response while it is made.

    Args:
        response: makes its events.
        owner: whose it is.
        intake: it has a place in.
        num_bytes: that the intake counts for it.
        is_streamed: whether clients may ask for its events.
    """

    def __init__(
        self, response: ModelResponse, owner: str, intake: Intake, num_bytes: int, *, is_streamed: bool
    ) -> None:
        self.id, self.owner, self.is_streamed = response.id, owner, is_streamed
        self._response, self._intake, self._num_bytes = response, intake, num_bytes
        self.events: list[bytes] = []
        """Its events so far, as JSON."""
        self._news = asyncio.Event()
        self._ended: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        """Set when it must end early: why it failed, or None if it was cancelled."""
        self._task: asyncio.Task[None] | None = None
        self._is_done = False

    def begin(self, outputs: Outputs, keep: Keep, seconds: float) -> None:
        """Begin to make it.

        Args:
            outputs: of the engine; closed at the end.
            keep: called before the last event is told.
            seconds: after which it fails.
        """
        self._tell(self._response.queued())
        self._task = asyncio.create_task(self._run(outputs, keep, seconds))

    @property
    def now(self) -> dict[str, Any]:
        """The response as it is now."""
        return self._response.now("in_progress" if self._response.is_begun else "queued")

    def stop(self, reason: ApiError | None) -> None:
        """End it early; with a reason it failed, without one it was cancelled."""
        if not self._ended.done():
            self._ended.set_result(reason)

    def when_ended(self, then: Callable[[], None]) -> None:
        """Call a function once it has ended."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: then())

    async def wait(self) -> None:
        """Return once it has ended."""
        assert self._task is not None
        await asyncio.wait([self._task])

    async def follow(self, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """Its events after one of a number, as they come."""
        number = after + 1
        while True:
            news, is_done = self._news, self._is_done
            for event in self.events[number:]:
                number += 1
                yield msgspec.json.decode(event)
            if is_done:
                return
            await news.wait()

    async def _run(self, outputs: Outputs, keep: Keep, seconds: float) -> None:
        deadline = asyncio.get_running_loop().call_later(seconds, self.stop, timed_out(seconds))
        try:
            last = await self._last_events(outputs)
            events = b"[" + b",".join([*self.events, *map(msgspec.json.encode, last)]) + b"]"
            try:
                await keep(last[-1]["response"], events)
            except ApiError as error:
                last = [*self._response.failure(error)]
            self._tell(last)
        finally:
            deadline.cancel()
            self._is_done = True
            self._news.set()
            self._intake.leave(self, self._num_bytes)

    async def _last_events(self, outputs: Outputs) -> list[dict[str, Any]]:
        """Tell all events but those at the end, which are returned."""
        work = asyncio.ensure_future(self._generate(outputs))
        waited: set[asyncio.Future[Any]] = {work, self._ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        await cancelled([work])
        reason = self._ended.result()
        return [*(self._response.cancellation() if reason is None else self._response.failure(reason))]

    async def _generate(self, outputs: Outputs) -> list[dict[str, Any]]:
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    events = [*self._response.events(output)]
                    if output.finished:
                        self._tell(events[:-1])
                        return events[-1:]
                    self._hold(self._tell(events))
            raise AssertionError("outputs end with a finished one")
        except Exception as error:
            return [*self._response.failure(as_api_error(error))]

    def _hold(self, num_bytes: int) -> None:
        self._intake.hold(num_bytes)
        self._num_bytes += num_bytes

    def _tell(self, events: Iterable[dict[str, Any]]) -> int:
        """Add events; returns their bytes."""
        encoded = [msgspec.json.encode(event) for event in events]
        self.events += encoded
        news, self._news = self._news, asyncio.Event()
        news.set()
        return sum(map(len, encoded))
