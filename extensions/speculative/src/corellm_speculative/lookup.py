"""Drafts from text that came before: a request's own, or earlier outputs.

Knows sequences; how one is guessed, `guessing` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from corellm.scheduling.batch import NewSequence
from corellm_speculative.drafting import Drafting
from corellm_speculative.guessing import Guesser
from corellm_speculative.outputs import Outputs
from corellm_speculative.settings import SHORTEST_SUFFIX, DraftSettings


class LookupDrafting(Drafting):
    """Drafts what stood behind the same tokens before, where steps so far show that it pays.

    Args:
        settings: how.
        clock: seconds, monotonic.
    """

    def __init__(self, settings: DraftSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(settings, clock)
        self.outputs: Outputs | None = None
        if settings.method == "suffix":
            depth, kept = settings.suffix_decoding_max_tree_depth, settings.suffix_decoding_max_cached_requests
            self.outputs = Outputs(SHORTEST_SUFFIX, depth, kept)
        self._guessers: dict[str, Guesser] = {}

    def add(self, sequence: NewSequence) -> None:
        """See `Drafting.add`."""
        self._guessers[sequence.request_id] = Guesser(sequence, self.settings, self.outputs, self.acceptance)

    def end(self, request_id: str) -> None:
        """See `Drafting.end`; keeps the output."""
        guesser = self._guessers.pop(request_id, None)
        if guesser is not None and self.outputs is not None:
            sequence = guesser.sequence  # preempted ones come back, with what is kept by then
            self.outputs.add(sequence.cache_salt, sequence.output_token_ids[guesser.num_known :])

    def guess(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """See `Drafting.guess`."""
        least_chance, drafts = self.costs.least_chance(len(sampled)), {}
        for request_id, tokens in sampled.items():
            guesser = self._guessers[request_id]
            guesser.add(tokens)
            if found := guesser.drafts(least_chance):
                drafts[request_id] = found
        return drafts

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted."""
        super().forget()
        self._guessers.clear()
