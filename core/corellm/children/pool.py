"""A fixed number of children, each lent to one thread at a time.

Knows nothing of what they do. A child that died is started again when it is next used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corellm.children.child import Child


class BusyError(Exception):
    """All children were lent for as long as a caller waits."""


class ClosedError(Exception):
    """The pool was closed."""


class ChildPool:
    """Children of one module, which start when first lent.

    Args:
        count: how many.
        module, arguments: as of `Child`.
    """

    def __init__(self, count: int, module: str, *arguments: str) -> None:
        self._children = [Child(module, *arguments) for _ in range(count)]
        self.is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._free: list[Child] = list(self._children)
        self._changed = threading.Condition()
        self._pid = os.getpid()

    @contextmanager
    def lend(self, seconds: float, preferred: Sequence[Child | None] = ()) -> Iterator[Child]:
        """Lend a child.

        Args:
            seconds: how long to wait for one.
            preferred: the children to take if they are free; else the one that was returned last.

        Raises:
            BusyError: none was free in this time.
            ClosedError: the pool is closed.
        """
        if self._pid != os.getpid():  # after a fork: threads that had children, and held the lock, are not in here
            self._begin()
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self.is_closed, seconds):
                raise BusyError
            if self.is_closed:
                raise ClosedError
            child = next((child for child in preferred if child in self._free), None) or self._free[-1]
            self._free.remove(child)
        try:
            yield child
        finally:
            with self._changed:
                if self.is_closed:  # it may have started since
                    child.kill()
                self._free.append(child)
                self._changed.notify()

    def close(self) -> None:
        """End all children, also those that are lent: their requests fail, and nothing is lent any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            for child in self._children:
                if child in self._free:
                    child.kill()
                else:
                    child.interrupt()
