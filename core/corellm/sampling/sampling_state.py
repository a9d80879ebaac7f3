"""The sampling state of one running sequence, updated token by token.

Knows one request's parameters, the tokens it has seen and its stream of random numbers; knows nothing of the batch it
runs in and holds no logits. Everything here follows from the `NewSequence` alone, so a state made again after a
preemption behaves exactly as the dropped one.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corellm.errors import CorellmError, RequestFailedError
from corellm.sampling.constraint import Constraint, Restarting, TokenMask, num_words, pack
from corellm.sampling.extensions import NO_EXTENSIONS, SamplingExtensions
from corellm.scheduling.batch import NewSequence
from corellm.system.failures import failure_of

logger = logging.getLogger(__name__)

Ids = NDArray[np.int64]
Values = NDArray[np.float32]
_NOTHING: tuple[Ids, Values] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
"""No tokens, and what is added to their logits."""


class SamplingState:
    """One sequence's sampling parameters, token tally and random numbers; owned by the worker, made once per sequence.

    Token ids outside the logits' width can never be generated, so they are ignored everywhere (a prompt may hold
    placeholder ids beyond it); the engine refuses them in parameters before a request gets here.

    Args:
        sequence: the sequence; its `output_token_ids` is read at every step and may hold tokens already.
        vocab_size: the logits' width.
        engine_seed: with the request's id, the source of random numbers of a request without a seed.
        extensions: what requests may have of them.

    Attributes:
        failure: why the constraint or a logits processor failed, after which no token is allowed; None as long as none
            has.
        processing: what changes the logits before anything else; None for nothing.
        processors: what `processing` keeps of the sequence.
        vocab_size: the logits' width.
    """

    _level_of_failures = logging.ERROR

    def __init__(
        self, sequence: NewSequence, vocab_size: int, engine_seed: int, extensions: SamplingExtensions = NO_EXTENSIONS
    ) -> None:
        params = sequence.sampling_params
        self.request_id = sequence.request_id
        self.params = params
        self.greedy = params.greedy or params.top_k == 1
        """Whether the best token is taken: no random number is drawn."""
        self._outputs: Sequence[int] = sequence.output_token_ids
        self.prompt_token_ids = sequence.prompt_token_ids
        self.processing = extensions.processing if params.logits_processors else None
        self.processors: Any = None
        self.vocab_size = vocab_size

        self._allowed: TokenMask | None = None
        if params.allowed_token_ids is not None:
            self._allowed = pack(self._reachable(params.allowed_token_ids), vocab_size)
        self._constraint: Constraint | None = None
        self._extensions = extensions
        self._stop_token_ids = frozenset(self._reachable(sequence.stop_token_ids).tolist())
        self.failure: CorellmError | None = None
        self._constant, self._bad_endings = _NOTHING, dict[int, list[tuple[list[int], int]]]()
        if params.logit_bias or sequence.bad_words_ids:
            self._constant, self._bad_endings = self._constant_additions(sequence)
        self._held_back = _forbidden(self._reachable(sequence.stop_token_ids))
        self._choices, self._not_first = list[TokenMask](), _NOTHING
        if "opening" in sequence.part:
            self._choices, self._not_first = self._opening(*sequence.part["opening"])
        self._num_accepted = len(self._choices)  # which are no constraint's
        self._num_opening = len(self._choices) + bool(len(self._not_first[0]))
        """Tokens of the output that are chosen by rules of their place."""

        self._repeats_prompt = params.repetition_penalty != 1.0
        self.penalised = self._repeats_prompt or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        """Whether a penalty needs the tally of seen tokens."""
        self._tally = TokenTally()
        self._num_tallied = 0
        if self._repeats_prompt:
            self._tally.mark(np.unique(self._reachable(sequence.prompt_token_ids)))

        source = f"engine {engine_seed} request {sequence.request_id}" if params.seed is None else f"seed {params.seed}"
        self._stream = blake2b(source.encode(), digest_size=32).digest()

    def _reachable(self, token_ids: Iterable[int]) -> Ids:
        ids = np.fromiter(token_ids, dtype=np.int64)
        return ids[(ids >= 0) & (ids < self.vocab_size)]

    def _opening(
        self, choices: Iterable[Iterable[int]], not_first: Iterable[int]
    ) -> tuple[list[TokenMask], tuple[Ids, Values]]:
        """Return what the output's first tokens may be, and what does not come behind them."""
        masks = [pack(self._reachable(tokens), self.vocab_size) for tokens in choices]
        return masks, _forbidden(self._reachable(not_first))

    def _constant_additions(
        self, sequence: NewSequence
    ) -> tuple[tuple[Ids, Values], dict[int, list[tuple[list[int], int]]]]:
        """Return what is added to the logits at every step, and the longer bad words by their last token but one."""
        bias = {t: b for t, b in (sequence.sampling_params.logit_bias or {}).items() if 0 <= t < self.vocab_size}
        words = [list(word) for word in sequence.bad_words_ids if word and 0 <= word[-1] < self.vocab_size]
        single = [word[0] for word in words if len(word) == 1]
        ids = np.array([*single, *bias], dtype=np.int64)
        values = np.array([-np.inf] * len(single) + list(bias.values()), dtype=np.float32)
        endings: defaultdict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for word in words:
            if len(word) > 1:
                endings[word[-2]].append((word[:-1], word[-1]))
        return (ids, values), dict(endings)

    @property
    def output_token_ids(self) -> Sequence[int]:
        """The tokens generated so far."""
        return self._outputs

    @property
    def num_generated(self) -> int:
        """Tokens generated so far; the next token's position in the request's stream of random numbers."""
        return len(self._outputs)

    @property
    def edits_logits(self) -> bool:
        """Whether the next token's logits are changed before temperature: by a mask, a bias or a penalty."""
        return (
            self._allowed is not None
            or self.params.constraint is not None
            or self.penalised
            or len(self._constant[0]) > 0
            or bool(self._bad_endings)
            or self._below_min_tokens
            or self.num_generated < self._num_opening
        )

    @property
    def looks_back(self) -> bool:
        """Whether the next token can be chosen only once all before it are in `output_token_ids`.

        If not, their number is enough: nothing is asked of earlier tokens, and no rule of its place is left.
        """
        return (
            self.params.constraint is not None
            or self.penalised
            or bool(self._bad_endings)
            or self.processing is not None
            or self._below_min_tokens
            or self.num_generated < self._num_opening
        )

    @property
    def _below_min_tokens(self) -> bool:
        return len(self._outputs) < self.params.min_tokens and len(self._held_back[0]) > 0

    def allowed_tokens(self) -> TokenMask | None:
        """Return which tokens may come next, or None for all; none may once the constraint has failed."""
        if self.num_generated < len(self._choices):
            return self._choices[self.num_generated]
        if self.params.constraint is None:
            return self._allowed
        mask = np.zeros(num_words(self.vocab_size), dtype=np.int32)
        if self.failure is None:
            try:
                self._fill(mask)
            except Exception as error:
                self.fail(f"the constraint {self.params.constraint.kind!r:.100}", error)
                mask[:] = 0
        return mask if self._allowed is None else mask & self._allowed

    def fail(self, stage: str, error: Exception) -> None:
        """Note why no token is allowed any more."""
        self.failure = failure_of(
            f"generated token {self.num_generated}: {stage}", error, RequestFailedError, level=self._level_of_failures
        )

    def _fill(self, mask: TokenMask) -> None:
        self._current_constraint().fill(mask)

    def _current_constraint(self) -> Constraint:
        """Return the constraint after it accepted the whole output."""
        if self._constraint is None:
            assert self.params.constraint is not None
            self._constraint = self._extensions.make(self.params.constraint, self._stop_token_ids)
        for position in range(self._num_accepted, len(self._outputs)):
            self._constraint.accept(self._outputs[position])
        self._num_accepted = max(self._num_accepted, len(self._outputs))
        return self._constraint

    def along(self, drafts: Sequence[int]) -> list[SamplingState]:
        """Return the states before each draft and after the last, as if those before it were right; for one use."""
        return [self, *(self.after(drafts[:count]) for count in range(1, len(drafts) + 1))]

    def after(self, tokens: Sequence[int]) -> SamplingState:
        """Return the state as if these tokens had come, for one use; this one stays as it is."""
        return _DraftedState(self, tokens)

    def foreseen(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens that the constraint foresees once these have come; none if it does not, or fails."""
        if self.params.constraint is None or self.failure is not None or self._stop_token_ids.intersection(tokens):
            return ()
        try:
            with self._constraint_after(tokens) as constraint:
                foresee = getattr(constraint, "foresee", None)
                return () if foresee is None else foresee()
        except Exception as error:  # the next mask finds it again, and says so
            logger.debug("request %s: what comes next is not foreseen", self.request_id, exc_info=error)
            return ()

    @contextmanager
    def _constraint_after(self, tokens: Sequence[int]) -> Iterator[Constraint]:
        """Yield the constraint after it accepted these tokens, too, which it takes back behind it."""
        constraint = self._current_constraint()
        try:
            for token in tokens:
                constraint.accept(token)
            yield constraint
            constraint.rollback(len(tokens))
        except Exception:
            self._restart_constraint()
            raise

    def _restart_constraint(self) -> None:
        """Begin again with the output: what the constraint has accepted is not known."""
        if isinstance(self._constraint, Restarting):
            self._constraint.restart()
        else:
            self._constraint = None
        self._num_accepted = len(self._choices)

    def additions(self) -> list[tuple[Ids, Values]]:
        """Return `(token ids, values)` to add to the next token's logits; minus infinity forbids a token."""
        found = [self._constant] if len(self._constant[0]) else []
        if self._below_min_tokens:
            found.append(self._held_back)
        if len(self._choices) <= self.num_generated < self._num_opening:
            found.append(self._not_first)
        if self._bad_endings and self._outputs:
            endings = self._bad_endings.get(self._outputs[-1], ())
            completing = [last for prefix, last in endings if list(self._outputs[-len(prefix) :]) == prefix]
            if completing:
                found.append(_forbidden(np.array(completing, dtype=np.int64)))
        return found

    def seen_tokens(self) -> tuple[Ids, Values]:
        """Return the distinct tokens seen and how often each was generated (0: prompt only, for `repetition_penalty`).

        The arrays are views, valid until the next call. A call counts only the tokens since the last call.
        """
        for position in range(self._num_tallied, len(self._outputs)):
            self._tally.add(self._outputs[position])
        self._num_tallied = len(self._outputs)
        return self._tally.ids, self._tally.counts

    def uniform(self, ahead: int = 0) -> float:
        """Return the random number in [0, 1) of the next token, or of one `ahead`: a keyed hash of its position.

        It depends on the seed (or the engine's seed and the request id) and the position alone: not on the batch or on
        earlier calls.
        """
        position = (len(self._outputs) + ahead).to_bytes(8, "little")
        digest = blake2b(position, key=self._stream, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class _DraftedState(SamplingState):
    """The state of a sequence after drafts; the one that it is made of stays as it is."""

    _level_of_failures = logging.DEBUG
    """Level of failures in the log: drafts may be wrong, and where they are right, the next step fails alike."""

    def __init__(self, state: SamplingState, drafts: Sequence[int]) -> None:
        self.__dict__.update(state.__dict__)
        self._state, self._drafts = state, drafts
        self._outputs = [*state._outputs, *drafts]
        if self.penalised:
            self._tally = state._tally.copy()

    def _fill(self, mask: TokenMask) -> None:
        """Fill a mask as after the drafts; with nothing if one of them cannot come, or ends the output."""
        constraint, accepted = self._state._current_constraint(), 0
        try:
            for token in self._drafts:
                constraint.fill(mask)
                if not _has(mask, token) or token in self._stop_token_ids:
                    mask[:] = 0
                    break
                constraint.accept(token)
                accepted += 1
                mask[:] = 0
            else:
                constraint.fill(mask)
            constraint.rollback(accepted)
        except Exception:
            self._state._restart_constraint()
            raise


def _has(mask: TokenMask, token: int) -> bool:
    return bool(0 <= token // 32 < len(mask) and mask[token // 32] >> token % 32 & 1)


class TokenTally:
    """A growing set of token ids with a count for each, as arrays."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)

    @property
    def ids(self) -> Ids:
        """The distinct tokens, in order of appearance."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Values:
        """How often each of `ids` was added."""
        return self._counts[: len(self._place)]

    def copy(self) -> TokenTally:
        """Return one that grows on its own."""
        other = TokenTally()
        other._place, other._ids, other._counts = dict(self._place), self._ids.copy(), self._counts.copy()
        return other

    def mark(self, token_ids: Ids) -> None:
        """Add new, distinct tokens with a count of 0."""
        for token in token_ids.tolist():
            self._find(token)

    def add(self, token: int) -> None:
        """Count one token."""
        place = self._find(token)  # may replace the arrays
        self._counts[place] += 1.0

    def _find(self, token: int) -> int:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        return place


def _forbidden(token_ids: Ids) -> tuple[Ids, Values]:
    return token_ids, np.full(len(token_ids), -np.inf, dtype=np.float32)
