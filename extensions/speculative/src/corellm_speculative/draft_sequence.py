"""A sequence as the draft model sees it: the text without items, how much of it is computed, and whether drafts pay.

Knows tokens; knows neither the draft model nor the other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from corellm.sampling.sampling_state import SamplingState
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.acceptance import Acceptance

_FIRST_PAUSE, _LONGEST_PAUSE = 128, 256
"""Steps until a sequence whose drafts do not pay has one again."""
_LONG_GAP, _KEPT_OF_GAP = 64, 32
"""A trial draft after a pause that is longer is made from what was computed before and the newest tokens alone."""


class DraftSequence:
    """Keeps what drafts of a sequence need.

    Args:
        sequence: the sequence.
        num_ids: tokens below can be embedded; others the draft model does not see.
        before: how often drafts were right for others.
        is_trial: whether it is drafted at first whatever others have shown.

    Attributes:
        text: what the draft model reads: drafts can be bad, so that items are left out.
        num_computed: how many tokens of the text have keys and values.
        block_table: of the draft model.
        drafts: what was drafted last.
    """

    def __init__(self, sequence: NewSequence, num_ids: int, before: Acceptance, *, is_trial: bool) -> None:
        self.sequence, self.acceptance = sequence, Acceptance(before)
        self._state: SequenceState | None = None
        self.text: list[int] = []
        self.num_computed = 0
        self.block_table: list[int] = []
        self.drafts: list[int] = []
        self._num_ids = num_ids
        self._sampled: Sequence[int] = ()
        self._pause = 1 if is_trial else _FIRST_PAUSE
        self._num_idle = 0
        """Steps since the last draft."""
        self._begin()

    def _begin(self) -> None:
        """Read the prompt and the output that the sequence comes with."""
        prompt, start = self.sequence.prompt_token_ids, 0
        for feature in sorted(self.sequence.features, key=lambda feature: feature.placeholder.offset):
            self._read(prompt[start : feature.placeholder.offset])
            start = max(start, feature.placeholder.end)
        self._read(prompt[start:])
        self._read(self.sequence.output_token_ids)

    def _read(self, tokens: Sequence[int]) -> None:
        self.text += [token for token in tokens if 0 <= token < self._num_ids]

    def sample_as(self, sampling: SamplingState) -> None:
        """Note how the model samples; drafts are sampled alike, by the same random numbers.

        Where both models give a token about the same place in their distributions, both choose it.
        """
        if self._state is None:
            plain = NewSequence(self.sequence.request_id, [], [], SamplingParams(), ())
            self._state = SequenceState(plain, sampling)

    def add(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens, and compare them with the drafts, whether or not these were checked."""
        num_drafts = len(self.drafts)
        num_right = self._compare(tokens)
        if num_drafts:
            self.num_computed += min(num_right, num_drafts - 1)  # the last draft was not read
        self._read(tokens)
        self.num_computed = max(0, min(self.num_computed, len(self.text) - 1))

    def _compare(self, tokens: Sequence[int]) -> int:
        """Return how many drafts the next tokens are, and note it; the drafts are gone."""
        num_right = 0
        for draft, token in zip(self.drafts, tokens, strict=False):
            self.acceptance.note(num_right + 1, draft == token)
            if draft != token:
                break
            num_right += 1
        if self.drafts:
            self._pause = max(1, self._pause // 4) if num_right else min(4 * self._pause, _LONGEST_PAUSE)
        self._num_idle = 0 if self.drafts else self._num_idle + 1
        self.drafts, self._sampled = [], tokens
        return num_right

    @property
    def room(self) -> int:
        """How many further tokens can come after the next one; 0 for an output that has ended."""
        params, num_outputs = self.sequence.sampling_params, len(self.sequence.output_token_ids) + len(self._sampled)
        if self._state is None or not self.text:
            return 0
        if num_outputs >= params.min_tokens and self.ends(self._sampled[-1]):
            return 0
        return max(0, params.max_tokens - num_outputs - 1) if params.max_tokens is not None else 1 << 30

    def ends(self, token: int) -> bool:
        """Whether a token ends the output."""
        return token in self.sequence.stop_token_ids

    @property
    def is_due(self) -> bool:
        """Whether it is time for a draft, though none pays."""
        return self._num_idle >= self._pause

    def skip(self) -> None:
        """Leave out tokens of a long gap."""
        if len(self.text) - self.num_computed > _LONG_GAP and self._pause > 1:
            del self.text[self.num_computed : -_KEPT_OF_GAP]

    def state(self) -> SequenceState:
        """Return the worker's state for one row, behind the drafts so far."""
        assert self._state is not None
        sampling, tokens = self._state.sampling, [*self._sampled, *self.drafts]
        depends_on_tokens = not sampling.greedy or sampling.edits_logits
        return replace(self._state, sampling=sampling.after(tokens)) if depends_on_tokens else self._state
