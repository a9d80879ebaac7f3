"""Bodies that are still coming: how many, of which clients, and which of them gives way when there is no room.

What stalls gives way to what comes: of bodies that brought nothing for a while, the one that waits for longest. To a
body that has come, each that is still coming gives way. A body takes a place with its first progress, if more of it is
to come: a small one, which comes whole, needs none, and one that brings nothing takes none. All but `num_bytes` takes
constant time. Knows bodies and clients' addresses; knows neither JSON nor the queue.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from corellm_server.errors import ApiError, unavailable
from corellm_server.exchange import Exchange

_GRACE_SECONDS = 1.0
"""How long a body may bring nothing before it gives way."""
_PROGRESS_BYTES = 1 << 12
"""So many are progress: a client that sends a byte a second stalls."""


class Upload:
    """One body that is still coming.

    Args:
        exchange: its request.
        stall_seconds: in which it must make progress.
        end: the time of the event loop by which it must have come.
    """

    def __init__(self, exchange: Exchange, stall_seconds: float, end: float) -> None:
        self.exchange = exchange
        self._stall_seconds, self._end = stall_seconds, end
        self.moved = asyncio.get_running_loop().time()
        """When it last made progress."""
        self.refusal: ApiError | None = None
        """Why it gave way."""
        self.time_limit = asyncio.timeout_at(self._deadline())
        self._num_new = 0

    def _deadline(self) -> float:
        return min(self.moved + self._stall_seconds, self._end)

    def came(self, num_bytes: int) -> bool:
        """Note bytes that came; whether they are progress. One that gave way makes none."""
        self._num_new += num_bytes
        if self._num_new < _PROGRESS_BYTES or self.refusal is not None:
            return False
        self._num_new, self.moved = 0, asyncio.get_running_loop().time()
        if not self.time_limit.expired():
            self.time_limit.reschedule(self._deadline())
        return True

    def give_way(self, refusal: ApiError) -> None:
        """End it soon."""
        refusal.headers["Connection"] = "close"
        self.refusal = refusal
        if not self.time_limit.expired():
            self.time_limit.reschedule(0)


class Uploads:
    """All bodies that are still coming.

    Args:
        most: of them at once.
        most_of_client: of one address.
    """

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most, self._most_of_client = most, most_of_client
        self._open: OrderedDict[Upload, None] = OrderedDict()
        """The one whose last progress is longest ago is the first, here and below."""
        self._placed: OrderedDict[Upload, None] = OrderedDict()
        """Bodies that have a place."""
        self._of_client: dict[str, OrderedDict[Upload, None]] = {}
        """Bodies that have a place, by address."""

    def __len__(self) -> int:
        """Their number, with a place or without."""
        return len(self._open)

    @property
    def num_bytes(self) -> int:
        """What those with a place have brought."""
        return sum(upload.exchange.num_bytes for upload in self._placed)

    @contextmanager
    def entered(self, upload: Upload) -> Iterator[None]:
        """Watch a body while it comes."""
        self._open[upload] = None
        try:
            yield
        finally:
            self._forget(upload)

    def came(self, upload: Upload, num_bytes: int, *, more: bool) -> None:
        """Note bytes of a body, and whether more of it is to come.

        Raises:
            ApiError: 503, it needs a place; there are too many, and none gives way.
        """
        if not more:
            self._forget(upload)
        elif upload.came(num_bytes) and upload in self._open:
            if upload not in self._placed:
                self._check_room(upload.exchange.client)
            for crowd in (self._open, self._placed, self._of_client.setdefault(upload.exchange.client, OrderedDict())):
                crowd[upload] = None
                crowd.move_to_end(upload)

    def make_way(self, *, at_once: bool = False) -> Exchange | None:
        """Have the body that stalls for longest give way; returns its request, or None if none stalls.

        Args:
            at_once: if none stalls, take the slowest one that has a place.
        """
        stalled = self._made_way(self._open)
        return self._made_way(self._placed, at_once=True) if stalled is None and at_once else stalled

    def stop(self, reason: Callable[[], ApiError]) -> None:
        """Have all of them give way."""
        for upload in self._open:
            upload.give_way(reason())

    def _check_room(self, client: str) -> None:
        """Have a body that stalls give way where there is no place for one more of a client."""
        own = self._of_client.get(client, OrderedDict())
        for crowd, most, name in (
            (own, self._most_of_client, f"requests of {client}"),
            (self._placed, self._most, "requests"),
        ):
            if len(crowd) >= most and self._made_way(crowd) is None:
                raise unavailable(f"too many {name} are arriving; try again later")

    def _made_way(self, uploads: OrderedDict[Upload, None], *, at_once: bool = False) -> Exchange | None:
        upload = next(iter(uploads), None)
        latest = asyncio.get_running_loop().time() - (0 if at_once else _GRACE_SECONDS)
        if upload is None or upload.moved > latest:
            return None
        upload.give_way(unavailable("the request came too slowly, and others needed its room; send it again"))
        self._forget(upload)
        return upload.exchange

    def _forget(self, upload: Upload) -> None:
        self._open.pop(upload, None)
        if self._placed.pop(upload, upload) is None:
            own = self._of_client[upload.exchange.client]
            del own[upload]
            if not own:
                del self._of_client[upload.exchange.client]
