"""Rows of recurrent states: whose state lies in which row, and of how many tokens it is. Plain numbers, no tensors.

A step reads a sequence's row and writes to another one, which becomes the sequence's own only when the step is
committed: until then the step can run again.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_ONE = 0
"""The row of dummy sequences: written, never read."""
DUMMY = ""
"""The request id of dummy sequences."""


@dataclass(frozen=True, slots=True)
class Held:
    """A state that is kept."""

    row: int
    num_tokens: int
    """Tokens of the sequence that the state has seen."""


class Rows:
    """Rows of sequences that run, two for each while a step is in flight, and the row of no one.

    Args:
        max_num_seqs: sequences at once.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.count = 1 + 2 * max_num_seqs
        self._held: dict[str, Held] = {}
        self._next: dict[str, Held] = {}
        self._free = list(range(self.count - 1, 0, -1))

    def begin_step(self) -> None:
        """Give back the rows of a step that was not committed."""
        self._free += [held.row for held in self._next.values()]
        self._next.clear()

    def read(self, request_id: str, start: int) -> int | None:
        """Return the row of a sequence's state before its token `start`; None for the first token: there is no state.

        Raises:
            AssertionError: the state is not that of `start` tokens; always a bug of ours.
        """
        if not start:
            return None
        held = self._held.get(request_id, Held(NO_ONE, 0))
        assert held.num_tokens == start, f"request {request_id!r} goes on at token {start}, but its state is {held}"
        return held.row

    def write(self, request_id: str, num_tokens: int) -> int:
        """Return the row for a sequence's state after the step, when it has `num_tokens`."""
        if request_id == DUMMY:
            return NO_ONE
        row = self._free.pop()
        self._next[request_id] = Held(row, num_tokens)
        return row

    def commit(self) -> None:
        """Make what was written since `begin_step` the sequences' states."""
        self._free += [self._held[name].row for name in self._next if name in self._held]
        self._held |= self._next
        self._next.clear()

    def place(self, request_id: str, num_tokens: int) -> int:
        """Return a row for a state that is brought back."""
        row = self._free.pop()
        self._held[request_id] = Held(row, num_tokens)
        return row

    def release(self, request_id: str) -> Held | None:
        """Give back a sequence's row, whose state stays until something is written; None if it has none."""
        self.begin_step()
        held = self._held.pop(request_id, None)
        if held is not None:
            self._free.append(held.row)
        return held

    def release_all(self) -> None:
        """Give back every row. Works from any state that an interrupted change left."""
        self._held, self._next, self._free = {}, {}, list(range(self.count - 1, 0, -1))

    @property
    def num_held(self) -> int:
        """Sequences that have a state."""
        return len(self._held)

    def check_integrity(self) -> None:
        """Check that no row is lost or has two owners.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        rows = [*self._free, *(held.row for held in self._held.values()), *(held.row for held in self._next.values())]
        if sorted(rows) != list(range(1, self.count)):
            raise AssertionError(f"state rows, free and held, are {sorted(rows)}, not 1 to {self.count - 1}")
