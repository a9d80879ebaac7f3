"""Drafts of a draft model: all sequences that are drafted in one batch, token by token.

Knows sequences, chunks and the time of both models' steps; what a draft gains, `depths` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from corellm.scheduling.batch import NewSequence, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.costs import StepCosts
from corellm_speculative.depths import can_pay, plan_depths
from corellm_speculative.draft_model import DraftModel
from corellm_speculative.draft_sequence import DraftSequence
from corellm_speculative.draft_states import MOST_SINGLE
from corellm_speculative.drafting import Drafting
from corellm_speculative.settings import DraftSettings

_TRIAL_EVERY = 16
"""Sequences of which one is drafted at first though those before it were not."""


class ModelDrafting(Drafting):
    """Drafts what a smaller model says, where steps so far show that it pays.

    Args:
        settings: how.
        model: the draft model.
        clock: seconds, monotonic.
    """

    make_sequence: type[DraftSequence] = DraftSequence

    def __init__(
        self, settings: DraftSettings, model: DraftModel, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(settings, clock)
        self.model, self.block_bytes = model, model.block_bytes
        self._draft_costs = StepCosts()
        self._sequences: dict[str, DraftSequence] = {}
        self._num_added = 0

    def profile(self) -> None:
        """See `StepPart.profile`."""
        self.model.profile()

    def allocate(self, num_blocks: int) -> None:
        """See `StepPart.allocate`."""
        self.model.allocate(num_blocks)

    def add(self, sequence: NewSequence) -> None:
        """See `Drafting.add`."""
        is_trial = self._num_added % _TRIAL_EVERY == 0
        self._num_added += 1
        self._sequences[sequence.request_id] = self.make_sequence(
            sequence, self.model.num_ids, self.acceptance, is_trial=is_trial
        )

    def end(self, request_id: str) -> None:
        """See `Drafting.end`."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self.model.release(request_id, sequence.block_table)

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted."""
        super().forget()
        for request_id in [*self._sequences]:
            self.end(request_id)

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note how new sequences are sampled; the batch stays as it is."""
        for chunk, state in zip(chunks, states, strict=True):
            if (sequence := self._sequences.get(chunk.request_id)) is not None:
                sequence.sample_as(state.sampling)
        return batch

    def guess(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """See `Drafting.guess`."""
        sequences = [self._sequences[request_id] for request_id in sampled]
        for sequence, tokens in zip(sequences, sampled.values(), strict=True):
            sequence.add(tokens)
        wanted = self._wanted(sequences)
        going = self._read_text(wanted)
        while going := [sequence for sequence in going if len(sequence.drafts) < wanted[sequence]]:
            chunks = [_row(sequence, sequence.drafts[-1], len(sequence.drafts) - 1) for sequence in going]
            going = self._draft(going, chunks, going)
        return {sequence.sequence.request_id: sequence.drafts for sequence in wanted if sequence.drafts}

    def _wanted(self, sequences: Sequence[DraftSequence]) -> dict[DraftSequence, int]:
        """Return how many drafts sequences are to have, of those that are to have some."""
        rooms = [
            max(0, min(self.most_drafts, sequence.room, self.model.max_len - len(sequence.text)))
            for sequence in sequences
        ]
        depths = plan_depths([sequence.acceptance for sequence in sequences], rooms, self.costs, self._draft_costs)
        wanted = {sequence: depth for sequence, depth in zip(sequences, depths, strict=True) if depth}
        due = [
            sequence
            for sequence, room in zip(sequences, rooms, strict=True)
            if room and sequence not in wanted and sequence.is_due
        ]
        if due and can_pay(len(due), len(sequences), self.costs, self._draft_costs):
            for sequence in due:
                sequence.skip()
                wanted[sequence] = 1
        return wanted

    def _read_text(self, wanted: Mapping[DraftSequence, int]) -> list[DraftSequence]:
        """Compute what the draft model has not of texts, and draft the first tokens; returns whose.

        A step computes as much as the model itself may, so that long prompts keep no other sequence waiting for longer.
        """
        rows: list[tuple[DraftSequence, SequenceChunk]] = []
        budget = self.model.num_tokens
        for sequence, depth in wanted.items():
            sequence.num_computed = self.model.resume(sequence.sequence.request_id, sequence.num_computed)
            start, end = sequence.num_computed, min(sequence.num_computed + budget, len(sequence.text))
            if start == end or not self.model.extend(sequence.block_table, end + depth - 1):
                continue
            budget -= end - start
            sequence.num_computed = end
            chunk = SequenceChunk(
                sequence.sequence.request_id, start, end - start, sequence.text[start:end], sequence.block_table,
                samples=end == len(sequence.text),
            )  # fmt: skip
            singles = chunk.one_by_one() if chunk.samples and chunk.num_tokens <= MOST_SINGLE else [chunk]
            rows += [(sequence, single) for single in singles]
        rows.sort(key=lambda row: row[1].num_tokens > 1)
        drafted = [sequence for sequence, chunk in rows if chunk.start + chunk.num_tokens == len(sequence.text)]
        return self._draft([sequence for sequence, _ in rows], [chunk for _, chunk in rows], drafted)

    def _draft(
        self, sequences: Sequence[DraftSequence], chunks: Sequence[SequenceChunk], drafted: Sequence[DraftSequence]
    ) -> list[DraftSequence]:
        """Draft a token behind each sequence's last chunk; returns those that may have further ones."""
        if not chunks:
            return []
        began = self.clock()
        tokens = self._next_tokens(sequences, chunks)
        if all(chunk.num_tokens == 1 for chunk in chunks):
            self._draft_costs.note(len(chunks), self.clock() - began)
        last = dict(zip([s for s, c in zip(sequences, chunks, strict=True) if c.samples], tokens, strict=True))
        going = []
        for sequence in drafted:
            token = last[sequence]
            if 0 <= token < self.model.num_ids and not sequence.ends(token):
                sequence.drafts.append(token)
                going.append(sequence)
        return going

    def _next_tokens(self, sequences: Sequence[DraftSequence], chunks: Sequence[SequenceChunk]) -> list[int]:
        """Return the token after each chunk that samples."""
        return self.model.next_tokens(chunks, [sequence.state() for sequence in sequences])


def _row(sequence: DraftSequence, token: int, num_read: int) -> SequenceChunk:
    """Return the chunk of a draft, behind so many others."""
    start = len(sequence.text) + num_read
    return SequenceChunk(sequence.sequence.request_id, start, 1, [token], sequence.block_table, samples=True)
