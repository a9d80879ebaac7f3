"""What is in the server now: exchanges and their bytes, and whether more are let in. Knows no HTTP beyond errors."""

from __future__ import annotations

import asyncio
from typing import Protocol

from corellm.server.errors import ApiError, unavailable


class Stoppable(Protocol):
    """Something in flight that can be told to end."""

    def stop(self, reason: ApiError) -> None:
        """End soon, and tell the client why."""


class Intake:
    """Counts what is in flight, and refuses what is too much, in constant time.

    Args:
        max_requests: most requests at once.
        max_bytes: most bytes of them together.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._in_flight: set[Stoppable] = set()
        self.num_bytes = 0
        """Bytes of the requests in flight."""
        self.is_draining = False
        """Whether the server was told to stop."""

    def __len__(self) -> int:
        """The number of requests in flight."""
        return len(self._in_flight)

    def enter(self, request: Stoppable) -> None:
        """Let a request in.

        Raises:
            ApiError: 503, the server stops, or is full.
        """
        if self.is_draining:
            raise unavailable("the server is shutting down; ask another one", retry_after=5)
        if len(self._in_flight) >= self._max_requests:
            raise unavailable(f"the server is full: {self._max_requests} requests are in it; try again later")
        self._in_flight.add(request)

    def hold(self, num_bytes: int) -> None:
        """Count bytes of a request.

        Raises:
            ApiError: 503, the requests are too large together.
        """
        if self.num_bytes + num_bytes > self._max_bytes:
            raise unavailable("the requests in the server are too large together; try again later")
        self.num_bytes += num_bytes

    def leave(self, request: Stoppable, num_bytes: int) -> None:
        """Forget a request that ended, and its bytes."""
        self._in_flight.discard(request)
        self.num_bytes -= num_bytes

    async def drain(self, timeout: float) -> None:
        """Let no more requests in, wait for those in flight, and after `timeout` seconds stop the rest."""
        self.is_draining = True
        deadline = asyncio.get_running_loop().time() + timeout
        while self._in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for request in list(self._in_flight):
            request.stop(unavailable("the server is shutting down; the request was aborted", retry_after=5))
