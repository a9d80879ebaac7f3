"""What is in the server now: exchanges and their bytes, and whether more are let in. Knows no HTTP beyond errors.

A request takes its place once all of it has come; before, it is one of the `uploads`, which have bounds of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from corellm_server.errors import ApiError, unavailable
from corellm_server.uploads import Uploads


class Stoppable(Protocol):
    """Something in flight that can be told to end."""

    def stop(self, reason: ApiError) -> None:
        """End soon, and tell the client why."""


class Intake:
    """Counts what is in flight, and refuses what is too much, in constant time.

    Args:
        max_requests: most requests at once.
        max_bytes: most bytes of them together, those of uploads included.
        uploads: bodies that are still coming.
    """

    def __init__(self, max_requests: int, max_bytes: int, uploads: Uploads) -> None:
        self._max_requests, self._max_bytes, self.uploads = max_requests, max_bytes, uploads
        self._in_flight: set[Stoppable] = set()
        self.num_bytes = 0
        """Bytes of the requests in flight."""
        self.sleeps = False
        """Whether the model does, since this server was told to put it to sleep: requests wait."""
        self.ending: Callable[[], ApiError] | None = None
        """What requests are told once the server ends; None before."""

    def __len__(self) -> int:
        """The number of requests in flight."""
        return len(self._in_flight)

    def check_room(self) -> None:
        """Return if a request would be let in now.

        Raises:
            ApiError: 503, the server ends, or is full.
        """
        self.check_ending()
        if len(self._in_flight) >= self._max_requests:
            raise unavailable(f"the server is full: {self._max_requests} requests are in it; try again later")

    def check_ending(self) -> None:
        """Return if the server does not end.

        Raises:
            ApiError: 503, why it does.
        """
        if self.ending is not None:
            raise self.ending()

    def enter(self, request: Stoppable) -> None:
        """Let a request in.

        Raises:
            ApiError: 503, the server ends, or is full.
        """
        self.check_room()
        self._in_flight.add(request)

    def hold(self, num_bytes: int, *, is_arriving: bool = False) -> None:
        """Count bytes of a request; bodies that stall give way for them.

        For a request that has come, all bodies give way, if that makes room.

        Args:
            num_bytes: how many more.
            is_arriving: whether more of its body is to come.

        Raises:
            ApiError: 503, the requests are too large together.
        """
        missing = self.num_bytes + num_bytes - self._max_bytes
        at_once = not is_arriving and 0 < missing <= self.uploads.num_bytes
        while self.num_bytes + num_bytes > self._max_bytes:
            slow = self.uploads.make_way(at_once=at_once)
            if slow is None:
                raise unavailable("the requests in the server are too large together; try again later")
            self.num_bytes -= slow.num_bytes
            slow.num_bytes = 0
        self.num_bytes += num_bytes

    def leave(self, request: Stoppable, num_bytes: int) -> None:
        """Forget a request that ended, and its bytes."""
        self._in_flight.discard(request)
        self.num_bytes -= num_bytes

    async def drain(self, timeout: float, ending: Callable[[], ApiError]) -> None:
        """Let no more requests in, wait for those in flight, and after `timeout` seconds stop the rest.

        Args:
            timeout: seconds to wait.
            ending: makes the error that all these requests are told.
        """
        self.ending = ending
        deadline = asyncio.get_running_loop().time() + timeout
        while self._in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.uploads.stop(ending)
        for request in list(self._in_flight):
            request.stop(ending())
