"""Drafts of what the form of an output leaves no choice of, as the keys of a JSON schema.

Knows sequences and how often such drafts were right; what a form leaves, its constraint knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.acceptance import Acceptance
from corellm_speculative.drafting import Drafting
from corellm_speculative.settings import DraftSettings


class FormDrafting(Drafting):
    """Drafts what constraints foresee, where steps so far show that it pays.

    Args:
        settings: how.
        clock: seconds, monotonic.
    """

    def __init__(self, settings: DraftSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(settings, clock)
        self._sequences: dict[str, _Sequence] = {}

    def add(self, sequence: NewSequence) -> None:
        """See `Drafting.add`."""
        if sequence.sampling_params.constraint is not None:
            self._sequences[sequence.request_id] = _Sequence(self.acceptance)

    def end(self, request_id: str) -> None:
        """See `Drafting.end`."""
        self._sequences.pop(request_id, None)

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted."""
        super().forget()
        self._sequences.clear()

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note the constraints of new sequences; the batch stays as it is."""
        for chunk, state in zip(chunks, states, strict=True):
            sequence = self._sequences.get(chunk.request_id)
            if sequence is not None and sequence.sampling is None:  # later ones may be of drafts
                sequence.sampling = state.sampling
        return batch

    def guess(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """See `Drafting.guess`."""
        least_chance, drafts = self.costs.least_chance(len(sampled)), {}
        for request_id, tokens in sampled.items():
            sequence = self._sequences.get(request_id)
            if sequence is not None and (found := sequence.drafts(tokens, self.most_drafts, least_chance)):
                drafts[request_id] = found
        return drafts


class _Sequence:
    """One output with a form."""

    def __init__(self, before: Acceptance) -> None:
        self.sampling: SamplingState | None = None
        self._acceptance = Acceptance(before)
        self._foreseen: Sequence[int] = ()

    def drafts(self, tokens: Sequence[int], most: int, least_chance: float) -> list[int]:
        """Return drafts of what comes after these tokens, each of which is right with at least this chance."""
        # chances are counted by place: the first token of a text that must come is more often cut in another way
        for place, (foreseen, token) in enumerate(zip(self._foreseen, tokens, strict=False), start=1):
            self._acceptance.note(place, foreseen == token)
            if foreseen != token:
                break
        assert self.sampling is not None
        self._foreseen = self.sampling.foreseen(tokens)
        chance, drafts = 1.0, list[int]()
        for place, token in enumerate(self._foreseen[:most], start=1):
            chance *= self._acceptance.chance(place)
            if chance < least_chance:
                break
            drafts.append(token)
        return drafts
