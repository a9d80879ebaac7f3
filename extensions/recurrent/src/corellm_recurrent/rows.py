"""Rows of recurrent states: whose state lies in which row, and of how many tokens it is. Plain numbers, no tensors.

A step reads a sequence's row and writes to another one, which becomes the sequence's own only when the step is
committed: until then the step can run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_ONE = 0
"""The row of dummy sequences and of padding: what is in it is of no one, and no sequence reads it."""
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

    A step may compute drafts, and writes a row after each token. Which of them were right is known when the sequence
    goes on: its state is the one from which it does, and the others are given back.

    Args:
        max_num_seqs: sequences at once.
        most_drafts: of a sequence in a step.
    """

    def __init__(self, max_num_seqs: int, most_drafts: int = 0) -> None:
        self.max_num_seqs, self.count = max_num_seqs, 1 + (2 + most_drafts) * max_num_seqs
        self._held: dict[str, list[Held]] = {}
        self._next: dict[str, list[Held]] = {}
        self._free = list(range(self.count - 1, 0, -1))

    def begin_step(self) -> None:
        """Give back the rows of a step that was not committed."""
        self._free += _rows_of(self._next)
        self._next.clear()

    def read(self, request_id: str, start: int) -> int | None:
        """Return the row of a sequence's state before its token `start`; None for the first token: there is no state.

        Raises:
            AssertionError: there is no state of `start` tokens; always a bug of ours.
        """
        if not start:
            return None
        is_draft = request_id in self._next  # behind a token of this step
        held = (self._next if is_draft else self._held).get(request_id, [])
        found = next((one for one in held if one.num_tokens == start), None)
        assert found is not None, f"request {request_id!r} goes on at token {start}, but its states are {held}"
        if not is_draft:
            self._free += [one.row for one in held if one is not found]
            self._held[request_id] = [found]
        return found.row

    def write(self, request_id: str, num_tokens: int) -> int:
        """Return the row for a sequence's state after the step, when it has `num_tokens`."""
        if request_id == DUMMY:
            return NO_ONE
        row = self._free.pop()
        self._next.setdefault(request_id, []).append(Held(row, num_tokens))
        return row

    def commit(self) -> None:
        """Make what was written since `begin_step` the sequences' states."""
        self._free += [one.row for name in self._next for one in self._held.get(name, ())]
        self._held |= self._next
        self._next = {}

    def place(self, request_id: str, num_tokens: int) -> int:
        """Return a row for a state that is brought back."""
        row = self._free.pop()
        self._held[request_id] = [Held(row, num_tokens)]
        return row

    def release(self, request_id: str) -> list[Held]:
        """Give back a sequence's rows, whose states stay until something is written; several after drafts."""
        self.begin_step()
        held = self._held.pop(request_id, [])
        self._free += [one.row for one in held]
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
        rows = [*self._free, *_rows_of(self._held), *_rows_of(self._next)]
        if sorted(rows) != list(range(1, self.count)):
            raise AssertionError(f"state rows, free and held, are {sorted(rows)}, not 1 to {self.count - 1}")


def _rows_of(held: Mapping[str, Sequence[Held]]) -> list[int]:
    return [one.row for of_one in held.values() for one in of_one]
