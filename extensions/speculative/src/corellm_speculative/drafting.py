"""The part of a step that drafts: it guesses for each sequence, where steps so far show that it pays.

Knows sequences and the time of steps; how guesses are made and how drafts are checked others know.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from corellm.errors import CorellmError
from corellm.scheduling.batch import ScheduledBatch
from corellm.worker.parts.step_part import StepPart
from corellm_speculative.acceptance import Acceptance
from corellm_speculative.costs import StepCosts
from corellm_speculative.guessing import Guesser
from corellm_speculative.outputs import Outputs
from corellm_speculative.settings import SHORTEST_SUFFIX, DraftSettings

_REST_AFTER = 8
"""Steps without a draft after which the next steps need not wait for one."""


class Drafting(StepPart):
    """Drafts tokens.

    Args:
        settings: how.
        clock: seconds, monotonic.
    """

    def __init__(self, settings: DraftSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most_drafts = settings.num_speculative_tokens
        self.outputs: Outputs | None = None
        if settings.method == "suffix":
            depth, kept = settings.suffix_decoding_max_tree_depth, settings.suffix_decoding_max_cached_requests
            self.outputs = Outputs(SHORTEST_SUFFIX, depth, kept)
        self._settings, self._clock = settings, clock
        self._guessers: dict[str, Guesser] = {}
        self._acceptance, self._costs = Acceptance(memory=256), StepCosts()
        self._begun: deque[tuple[float, int]] = deque(maxlen=2)
        """When steps that are in flight began, and their rows; 0 for those that are not of decodes alone."""
        self._num_without = 0

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Take in which sequences are new and which are released."""
        for request_id in batch.released:
            self._end(request_id)
        for sequence in batch.new:
            guesser = Guesser(sequence, self._settings, self.outputs, self._acceptance)
            self._guessers[sequence.request_id] = guesser
        if any(chunk.samples for chunk in batch.chunks):
            decodes = all(chunk.num_tokens == 1 + chunk.num_drafts for chunk in batch.chunks)
            self._begun.append((self._clock(), batch.num_tokens if decodes else 0))
        return {}

    def _end(self, request_id: str) -> None:
        guesser = self._guessers.pop(request_id, None)
        if guesser is not None and self.outputs is not None:
            sequence = guesser.sequence  # preempted ones come back, with what is kept by then
            self.outputs.add(sequence.cache_salt, sequence.output_token_ids[guesser.num_known :])

    def propose(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Return drafts of what comes after the tokens that a step sampled."""
        if self._begun:
            began, num_rows = self._begun.popleft()
            if num_rows and not self._begun:  # no step beside it
                self._costs.note(num_rows, self._clock() - began)
        least_chance, drafts = self._costs.least_chance(len(sampled)), {}
        for request_id, tokens in sampled.items():
            guesser = self._guessers[request_id]
            guesser.add(tokens)
            if found := guesser.drafts(least_chance):
                drafts[request_id] = found
        self._num_without = 0 if drafts else self._num_without + 1
        self.rests = self._num_without >= _REST_AFTER
        return drafts

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted."""
        self._guessers.clear()
        self._begun.clear()
