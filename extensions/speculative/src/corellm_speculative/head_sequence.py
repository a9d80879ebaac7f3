"""A sequence as a head sees it: tokens, each beside the model's hidden state before it.

Knows tokens and rows; knows neither the head nor the other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from corellm_speculative.draft_sequence import DraftSequence

_KEPT = 64
"""Newest rows that are kept of a sequence that is not drafted."""


class HeadSequence(DraftSequence):
    """Keeps what drafts of a sequence need.

    The text begins where the first hidden state was noted: behind a cached prefix. What was not read has no place in
    it, so that positions count what was; where they begin makes no difference to rotated keys.

    Attributes:
        made: `[width]`, the head's own state behind the last draft.
    """

    made: Tensor

    def _begin(self) -> None:
        """Know the prompt and the output that the sequence comes with; none of it was read."""
        self._known = [*self.sequence.prompt_token_ids, *self.sequence.output_token_ids]
        self._rows: Tensor | None = None
        """`[n, several hidden states]`: of the tokens of the text that were not read, then of those that come next."""
        self._first = 0
        """Position of the first of these rows in the sequence."""

    def note(self, start: int, rows: Tensor, most: int) -> None:
        """Take the hidden states of a step, `[n, several]`, whose first is at `start`; keep at most so many rows.

        Those from there on that were noted before are replaced: they were of wrong drafts, or the step ran again. None
        are kept once the sequence's tokens are told no more, as drafts have failed.
        """
        if start > len(self._known):
            self._forget_rows()
            return
        kept = start - self._first
        if self._rows is None or not 0 <= kept <= len(self._rows):
            self._forget_rows()
            self._rows, self._first = rows, start
        else:
            self._rows = torch.cat([self._rows[:kept], rows]) if kept else rows
        self._keep(most)

    def add(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens, and compare them with the drafts; what was read of drafts is read again."""
        self._compare(tokens)
        self._known += tokens
        if self._rows is None:
            return
        begin = self._first + self._num_unread + 1
        end = min(self._first + len(self._rows) + 1, len(self._known))
        self.text += [token if 0 <= token < self._num_ids else 0 for token in self._known[begin:end]]

    @property
    def _num_unread(self) -> int:
        return len(self.text) - self.num_computed

    def take_rows(self, count: int) -> Tensor:
        """Return the rows of the next tokens of the text, `[count, several]`, which are read now."""
        assert self._rows is not None
        taken, self._rows = self._rows[:count], self._rows[count:]
        self._first += count
        return taken

    def rest(self) -> None:
        """Forget all but the newest of what was not read: the sequence is not drafted now."""
        self._keep(_KEPT)

    def skip(self) -> None:
        """Leave out nothing: `rest` has."""

    def _keep(self, most: int) -> None:
        if self._rows is not None and (surplus := len(self._rows) - most) > 0:
            del self.text[self.num_computed : self.num_computed + surplus]
            self._rows, self._first = self._rows[surplus:].clone(), self._first + surplus

    def _forget_rows(self) -> None:
        del self.text[self.num_computed :]
        self._rows = None
