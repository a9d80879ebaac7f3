"""Drafts of a head on the model's hidden states: what a draft model's are, and the rows that the head reads.

Knows which rows of a step are whose; what a head makes of them, it knows itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from corellm.scheduling.batch import SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.draft_sequence import DraftSequence
from corellm_speculative.head_model import HeadModel
from corellm_speculative.head_sequence import HeadSequence
from corellm_speculative.hidden_states import HiddenStates
from corellm_speculative.model_drafting import ModelDrafting
from corellm_speculative.settings import DraftSettings


class HeadDrafting(ModelDrafting):
    """Drafts what a head says, where steps so far show that it pays.

    Args:
        settings: how.
        model: the head.
        hidden: of the model.
        clock: seconds, monotonic.
    """

    make_sequence = HeadSequence
    model: HeadModel

    def __init__(
        self,
        settings: DraftSettings,
        model: HeadModel,
        hidden: HiddenStates,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(settings, model, clock)
        self._hidden, self.reads_all_tokens = hidden, hidden.is_output
        self._laid_out: list[tuple[str, int, int]] = []
        """Request, position of its first row, and number of rows, in the order of the step's rows."""

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note how new sequences are sampled, and whose rows the step has; the batch stays as it is."""
        self._laid_out = []
        for chunk in chunks:
            if self._laid_out and (last := self._laid_out[-1])[0] == chunk.request_id:  # its drafts have rows, too
                self._laid_out[-1] = (chunk.request_id, last[1], last[2] + chunk.num_tokens)
            else:
                self._laid_out.append((chunk.request_id, chunk.start, chunk.num_tokens))
        return super().lay_out(batch, chunks, states)

    def commit(self) -> None:
        """Take the hidden states of the step that ran: the next one overwrites them."""
        rows = self._hidden.first(sum(count for *_, count in self._laid_out))
        end = 0
        for request_id, start, count in self._laid_out:
            end += count
            if isinstance(sequence := self._sequences.get(request_id), HeadSequence):
                sequence.note(start, rows[end - count : end], self.model.num_tokens)

    def _wanted(self, sequences: Sequence[DraftSequence]) -> dict[DraftSequence, int]:
        wanted = super()._wanted(sequences)
        for sequence in sequences:
            if sequence not in wanted:
                assert isinstance(sequence, HeadSequence)
                sequence.rest()
        return wanted

    def _next_tokens(self, sequences: Sequence[DraftSequence], chunks: Sequence[SequenceChunk]) -> list[int]:
        heads = [sequence for sequence in sequences if isinstance(sequence, HeadSequence)]
        if heads[0].drafts:  # behind drafts, all of them
            given = torch.stack([sequence.made for sequence in heads])
        else:
            noted = [sequence.take_rows(chunk.num_tokens) for sequence, chunk in zip(heads, chunks, strict=True)]
            given = self.model.combined(torch.cat(noted))
        tokens, made = self.model.next_of(given, chunks, [sequence.state() for sequence in heads])
        for sequence, row in zip(heads, made, strict=True):  # of several chunks of a sequence the last counts
            sequence.made = row
        return tokens
