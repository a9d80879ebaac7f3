"""The interface of graphs: a step that is captured once and replayed on the same memory.

Which steps these are and when they run, `worker/decode_graphs.py` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class NotCapturable(Exception):
    """A step cannot be captured: it exchanges values with the host, or fails; says where."""


class Graph(Protocol):
    """A sequence of operations that is captured once and replayed on the same memory."""

    asynchronous: bool
    """Whether `replay` returns before the operations are done, so that the next step can be launched meanwhile."""

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Capture `step`, run it once and return its result, which each replay overwrites.

        Raises:
            NotCapturable: it cannot be replayed; nothing was captured.
        """
        ...

    def replay(self) -> None:
        """Run the captured operations on what the tensors that `step` read hold now."""
        ...
