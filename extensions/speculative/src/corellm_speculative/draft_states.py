"""States of a draft model's layers: several of each sequence are kept, as drafts may turn out wrong.

Knows rows and numbers of tokens; knows neither tensors nor drafts.
"""

from __future__ import annotations

from corellm_recurrent.rows import Rows

MOST_SINGLE = 4
"""Most new tokens of a sequence that run one by one, each with a state behind it, and not as a chunk."""


class DraftRows(Rows):
    """Rows of sequences, each of which may go on from one of its newest states.

    Args:
        max_num_seqs: sequences at once.
        num_kept: newest states of a sequence that are kept.
    """

    def __init__(self, max_num_seqs: int, num_kept: int) -> None:
        super().__init__(max_num_seqs, num_kept + MOST_SINGLE - 1)
        self._num_kept = num_kept

    def has(self, request_id: str, num_tokens: int) -> bool:
        """Whether there is a state of so many tokens of a sequence."""
        return any(one.num_tokens == num_tokens for one in self._held.get(request_id, ()))

    def read(self, request_id: str, start: int) -> int | None:
        """Return the row of a state; later ones, which were of wrong drafts, are given back, and earlier ones stay."""
        if request_id in self._next:
            return super().read(request_id, start)
        held = self._held.pop(request_id, [])
        self._free += [one.row for one in held if one.num_tokens > start]
        if not start:
            return None
        self._held[request_id] = [one for one in held if one.num_tokens <= start]
        (row,) = (one.row for one in held if one.num_tokens == start)
        return row

    def commit(self) -> None:
        """Keep what was written since `begin_step` beside the newest of earlier states."""
        for request_id, written in self._next.items():
            held = [*self._held.get(request_id, ()), *written]
            self._held[request_id] = held[-self._num_kept :]
            self._free += [one.row for one in held[: -self._num_kept]]
        self._next = {}
