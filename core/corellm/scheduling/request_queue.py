"""The queue in which requests wait: always in order of rank, at a cost that hardly grows with its length.

One queue does for both policies, because the rank holds the policy: first come first served ranks by arrival alone. A
preempted request therefore returns to its old place, before all later ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from corellm.scheduling.request import Request

_COMPACT_ABOVE = 64


class RequestQueue:
    """Requests by rank, smallest first: push and pop O(log n), peek and remove O(1) amortised.

    A heap with lazy deletion: a removed request's entry stays in the heap until it reaches the top, or until stale
    entries are the majority and the heap is rebuilt. Entries hold ids, so that a removed request's items are freed.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], str]] = []
        self._live: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        """The requests, in the order in which they were last put here."""
        return iter(self._live.values())

    def push(self, request: Request) -> None:
        """Put a request in its place."""
        self._live[request.request_id] = request
        heapq.heappush(self._heap, (request.rank, request.request_id))

    def peek(self) -> Request:
        """The request that goes first. The queue must not be empty."""
        while not self._is_live(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._live[self._heap[0][1]]

    def pop(self) -> Request:
        """Take out the request that goes first. The queue must not be empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._live[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Take out a request wherever it stands; it never comes back."""
        del self._live[request.request_id]
        if len(self._heap) > _COMPACT_ABOVE + 2 * len(self._live):
            self._heap = [entry for entry in self._heap if self._is_live(*entry)]
            heapq.heapify(self._heap)

    def _is_live(self, rank: tuple[float, int], request_id: str) -> bool:
        # An id may be reused once its request is finished: the stale entry has another rank.
        request = self._live.get(request_id)
        return request is not None and request.rank == rank
