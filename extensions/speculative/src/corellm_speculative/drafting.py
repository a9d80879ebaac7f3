"""The part of a step that drafts: which sequences there are, and what steps cost.

Knows sequences and the time of steps; what comes next the classes built on it guess.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from corellm.errors import CorellmError
from corellm.scheduling.batch import NewSequence, ScheduledBatch
from corellm.worker.parts.step_part import StepPart
from corellm_speculative.acceptance import Acceptance
from corellm_speculative.costs import StepCosts
from corellm_speculative.settings import DraftSettings

_REST_AFTER = 8
"""Steps without a draft after which the next steps need not wait for one."""


class Drafting(StepPart):
    """Drafts tokens.

    Args:
        settings: how.
        clock: seconds, monotonic.

    Attributes:
        acceptance: how often guesses were right, of all sequences.
        costs: of the model's steps.
    """

    def __init__(self, settings: DraftSettings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most_drafts = settings.num_speculative_tokens
        self.settings, self.clock = settings, clock
        self.acceptance, self.costs = Acceptance(memory=256), StepCosts()
        self._begun: deque[tuple[float, int]] = deque(maxlen=2)
        """When steps that are in flight began, and their rows; 0 for those that are not of decodes alone."""
        self._num_without = 0

    @abstractmethod
    def add(self, sequence: NewSequence) -> None:
        """Take in a new sequence."""

    @abstractmethod
    def end(self, request_id: str) -> None:
        """Drop a sequence that is released; it may be unknown."""

    @abstractmethod
    def guess(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Return drafts of what comes after the tokens that a step sampled; no empty ones."""

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Take in which sequences are new and which are released."""
        for request_id in batch.released:
            self.end(request_id)
        for sequence in batch.new:
            self.add(sequence)
        if any(chunk.samples for chunk in batch.chunks):
            decodes = all(chunk.num_tokens == 1 + chunk.num_drafts for chunk in batch.chunks)
            self._begun.append((self.clock(), batch.num_tokens if decodes else 0))
        return {}

    def propose(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Return drafts of what comes after the tokens that a step sampled."""
        if self._begun:
            began, num_rows = self._begun.popleft()
            if num_rows and not self._begun:  # no step beside it
                self.costs.note(num_rows, self.clock() - began)
        drafts = self.guess(sampled)
        self._num_without = 0 if drafts else self._num_without + 1
        self.rests = self._num_without >= _REST_AFTER
        return drafts

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted."""
        self._begun.clear()
