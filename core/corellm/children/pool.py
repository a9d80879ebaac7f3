"""A fixed number of children, each lent to one thread at a time.

Knows nothing of what they do. A child that died is started again when it is next used.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from corellm.children.child import MAX_REPLY_BYTES, Child, ChildError, ChildTimeoutError


class BusyError(Exception):
    """All children were lent for as long as a caller waits."""


class ClosedError(Exception):
    """The pool was closed."""


class _Loan:
    """A loan of one child. Only the borrower refers to it, so it ends with the borrower, also at an interrupt."""


class ChildPool:
    """Children of one module, which start when first lent.

    Args:
        count: how many.
        module, arguments, max_reply_bytes: as of `Child`.
        patience: seconds that a borrower may have a child work while another one waits; None for as long as it takes.
    """

    def __init__(
        self,
        count: int,
        module: str,
        *arguments: str,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        patience: float | None = None,
    ) -> None:
        self._patience = patience
        self._children = [Child(module, *arguments, max_reply_bytes=max_reply_bytes) for _ in range(count)]
        """In the order in which they were returned."""
        self.is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._loans: weakref.WeakKeyDictionary[_Loan, Child] = weakref.WeakKeyDictionary()
        self._changed = threading.Condition()
        self._pid = os.getpid()

    def _begin_again_after_fork(self) -> None:
        """Forget the loans of threads that are not in this process; one of them may have held the lock."""
        if self._pid != os.getpid():
            self._begin()

    def _free(self) -> list[Child]:
        lent = list(self._loans.values())
        return [child for child in self._children if child not in lent]

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
        self._begin_again_after_fork()
        loan = _Loan()
        try:
            with self._changed:
                self._wait(time.monotonic() + seconds)
                if self.is_closed:
                    raise ClosedError
                free = self._free()
                if not free:
                    raise BusyError
                child = next((child for child in preferred if child in free), free[-1])
                self._loans[loan] = child
                child.lent()
            yield child
        finally:
            with self._changed:
                if loan in self._loans:
                    if self.is_closed:  # it may have started since
                        child.kill()
                    self._children.sort(key=lambda other: other is child)
                    del self._loans[loan]
                    self._changed.notify()

    def _wait(self, deadline: float) -> None:
        """Wait until a child is free; meanwhile end those that have worked for long enough."""
        is_over = False
        while not is_over and (left := deadline - time.monotonic()) > 0:
            patience = left if self._patience is None else min(left, self._patience)
            is_over = self._changed.wait_for(lambda: self.is_closed or bool(self._free()), patience)
            if not is_over and self._patience is not None:
                self._interrupt_longest(time.monotonic() - self._patience)

    def _interrupt_longest(self, latest: float) -> None:
        busy = [(child.busy_since, child) for child in self._loans.values() if child.busy_since is not None]
        since, longest = min(busy, key=lambda found: found[0], default=(math.inf, None))
        if longest is not None and since <= latest:
            longest.interrupt(ChildTimeoutError("others wait for it"))

    def close(self) -> None:
        """End all children, also those that are lent: their requests fail, and nothing is lent any more."""
        self._begin_again_after_fork()
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            free = self._free()
            for child in self._children:
                if child in free:
                    child.kill()
                else:
                    child.interrupt(ChildError("its pool was closed"))
