"""A thread-safe LRU of processed items with a budget in bytes.

Knows keys, values and the sizes it is told; it neither measures nor looks inside a value. Values are shared between
requests: never write to one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_PATIENCE_S = 60.0


class ProcessorCache:
    """Values by key, at most `max_bytes` of them; the least recently used is evicted first.

    Args:
        max_bytes: the budget; 0 turns the cache off: nothing is stored and nothing shared.
        patience: seconds that `get_or_compute` waits for another thread before it computes by itself.

    Attributes:
        hits: lookups served from the cache, or by a computation that another thread had under way.
        misses: all other lookups.
    """

    def __init__(self, max_bytes: int, *, patience: float = _PATIENCE_S) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be 0 or more, got {max_bytes}")
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self._patience = patience
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # oldest use first
        self._nbytes = 0
        self._in_progress: dict[str, tuple[int, Future[list[Any]]]] = {}
        """The thread that computes a value, and what comes of it: the value, or nothing if that failed."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        """Whether `key` is stored; changes neither its age nor the counters."""
        return key in self._entries

    @property
    def usage(self) -> float:
        """Share of the budget that is stored, 0 to 1."""
        return self._nbytes / self.max_bytes if self.max_bytes else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return self._nbytes

    def get(self, key: str) -> Any | None:
        """The value of `key`, which becomes the most recently used; None if it is not stored."""
        with self._lock:
            entry = self._touch(key)
            self._count(entry is not None)
            return None if entry is None else entry[0]

    def put(self, key: str, value: Any, nbytes: int) -> None:
        """Store `value` as the most recently used, in place of an earlier one of this key.

        Evicts until it fits. A value larger than the whole budget is not stored, and evicts nothing else.

        Raises:
            ValueError: `nbytes` is negative.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes must be 0 or more, got {nbytes}")
        with self._lock:
            self._remove(key)
            if nbytes > self.max_bytes or not self.max_bytes:
                return
            while self._nbytes + nbytes > self.max_bytes:
                self._remove(next(iter(self._entries)))
            self._entries[key] = (value, nbytes)
            self._nbytes += nbytes

    def get_or_compute(self, key: str, compute: Callable[[], tuple[Any, int]]) -> Any:
        """The value of `key`, from the cache, from a thread that is computing it now, or from `compute`.

        `compute` returns `(value, nbytes)` and runs in the calling thread, with no lock held. Threads that want one key
        at one time wait for the first of them. If that one fails, its error is its caller's alone (it may name a
        request or an item that the others have nothing to do with), and the next waiting thread tries for itself.

        Raises:
            RuntimeError: `compute` asks for its own key.
            Whatever `compute` raises; nothing is stored then.
        """
        if not self.max_bytes:
            self._count_locked(hit=False)
            return compute()[0]
        while True:
            with self._lock:
                if (entry := self._touch(key)) is not None:
                    self._count(hit=True)
                    return entry[0]
                under_way = self._in_progress.get(key)
                if under_way is None:
                    self._count(hit=False)
                    own: Future[list[Any]] = Future()
                    self._in_progress[key] = (threading.get_ident(), own)
                    break
            owner, running = under_way
            if owner == threading.get_ident():
                raise RuntimeError(f"the computation of {key!r} asks the cache for {key!r}")
            try:
                found = running.result(self._patience)
            except TimeoutError:
                self._count_locked(hit=False)
                return compute()[0]
            if found:
                self._count_locked(hit=True)
                return found[0]
        return self._run(key, own, compute)

    def clear(self) -> None:
        """Forget everything stored. Computations under way go on, and store what they find."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    def _run(self, key: str, running: Future[list[Any]], compute: Callable[[], tuple[Any, int]]) -> Any:
        found: list[Any] = []
        try:
            value, nbytes = compute()
            self.put(key, value, nbytes)
            found.append(value)
            return value
        finally:
            with self._lock:
                del self._in_progress[key]
            running.set_result(found)

    def _touch(self, key: str) -> tuple[Any, int] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def _remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry[1]

    def _count(self, hit: bool) -> None:
        if hit:
            self.hits += 1
        else:
            self.misses += 1

    def _count_locked(self, hit: bool) -> None:
        with self._lock:
            self._count(hit)
