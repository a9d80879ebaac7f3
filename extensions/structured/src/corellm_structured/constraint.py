"""What holds one sequence to a form, and what makes it: compiled grammars, kept by their definitions.

Knows matchers and tokens of a sequence; knows neither logits nor how a grammar is compiled.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from llguidance import LLMatcher

from corellm.errors import InvalidParameterError, RequestFailedError
from corellm.sampling.constraint import Constraint, Foreseeing, TokenMask
from corellm.structured_outputs import ReasoningParams
from corellm_structured.checking import Checker
from corellm_structured.forms import parted
from corellm_structured.grammars import compiled
from corellm_structured.reasoning import AnyTokens, BoundedReasoning, grammar_around
from corellm_structured.vocabulary import AllowedTokens, Vocabulary

_STUCK = "NoExtensionBias"
"""The library's word where the vocabulary has no token for what must follow: no bit is set."""
MOST_SECONDS = 5.0
"""Processor time for a whole sequence: others wait, and no check sees where a grammar becomes slow."""
SLOW_SECONDS = 0.001
"""After a call that took as long the next ones are measured; asking for the processor's time takes as long as a usual
token. A single token has the limits of `grammars`."""
MEASURED_CALLS = 64
"""How many calls are measured behind a slow one: the first mask of a sequence often is one, or another program ran."""
_NUM_KEPT = 32
"""Compiled grammars; those that were used last."""


class StructuredConstraints:
    """Makes constraints for one model; safe to call from several threads.

    Args:
        tokenizer, vocab_size: as of `register_constraints`.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.vocabulary, self._checker = Vocabulary(tokenizer, vocab_size), Checker()
        self._compiled: OrderedDict[tuple[str, str | None], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, definition: str, stop_token_ids: frozenset[int] | None) -> Constraint:
        """Make a sequence's constraint, or check a definition; as `MakeConstraint`."""
        form, reasoning = parted(definition)
        if stop_token_ids is None and form:
            self._checker.check(form)
        made: Foreseeing = AnyTokens()
        if form:
            if reasoning is not None:
                self._check_end(reasoning, stop_token_ids or frozenset())
            made = StructuredConstraint(self, form, stop_token_ids or frozenset(), reasoning)
        if reasoning is None or reasoning.max_tokens is None:
            return made
        return BoundedReasoning(made, reasoning, self.vocabulary)

    def _check_end(self, reasoning: ReasoningParams, stop_token_ids: frozenset[int]) -> None:
        """Return if a form can come behind reasoning.

        Raises:
            InvalidParameterError: the output ends where the reasoning does.
        """
        if stop_token_ids and stop_token_ids.intersection(self.vocabulary.marker(reasoning.end).token_ids):
            told = f"the reasoning's end {reasoning.end!r} is a token that ends the output: no form can come behind it"
            raise InvalidParameterError(
                f"structured_outputs: {told}; take it out of stop_token_ids", param="structured_outputs.reasoning"
            )

    def prepare(self) -> None:
        """Read the tokenizer; as of `MakeConstraint`."""
        with self._lock:
            _ = self.vocabulary.known, self.vocabulary.ll_tokenizer

    def matcher(self, definition: str, reasoning: ReasoningParams | None = None) -> LLMatcher:
        """Return a matcher at the start of an output, which is the caller's.

        Args:
            definition: of a form.
            reasoning: what may come before it.

        Raises:
            InvalidParameterError: the definition is wrong.
        """
        around = None if reasoning is None else grammar_around(reasoning, self.vocabulary)
        key = (definition, around)
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                found = self._compiled[key] = compiled(definition, self.vocabulary.ll_tokenizer, around)
            self._compiled.move_to_end(key)
            if len(self._compiled) > _NUM_KEPT:
                self._compiled.popitem(last=False)
            return found.deep_copy()


class StructuredConstraint:
    """A `Foreseeing`, `Restarting` constraint: what may follow, so that the output can still become one of the form.

    Made as a whole when it is first asked. The tokens that end the output are allowed where it has the form, and only
    there.
    """

    def __init__(
        self,
        made_by: StructuredConstraints,
        definition: str,
        stop_token_ids: frozenset[int],
        reasoning: ReasoningParams | None = None,
    ) -> None:
        self._made_by, self._definition, self._stop_token_ids = made_by, definition, stop_token_ids
        self._reasoning = reasoning
        self._clock, self._spent, self._num_measured = time.perf_counter, 0.0, 0

    @cached_property
    def _matcher(self) -> LLMatcher:
        return self._made_by.matcher(self._definition, self._reasoning)

    @cached_property
    def _tokens(self) -> AllowedTokens:
        return AllowedTokens(self._made_by.vocabulary, self._stop_token_ids)

    def fill(self, mask: TokenMask) -> None:
        """As `Constraint.fill`."""
        tokens, matcher = self._tokens, self._matcher  # made first: that time has a limit of its own
        began = self._clock()
        try:
            tokens.fill(mask, matcher)
            is_well = not matcher.is_error() or matcher.get_error().startswith(_STUCK)
        except BaseException as error:
            _raise_panic(error)
            raise
        self._spend(self._clock() - began)
        self._check(is_well, "cannot tell what may follow")

    def accept(self, token_id: int) -> None:
        """As `Constraint.accept`."""
        matcher = self._matcher
        began = self._clock()
        try:
            is_taken = matcher.consume_token(token_id)
        except BaseException as error:
            _raise_panic(error)
            raise
        self._spend(self._clock() - began)
        self._check(is_taken, f"does not take token {token_id}")

    def rollback(self, num_tokens: int) -> None:
        """As `Constraint.rollback`."""
        try:
            is_done = self._matcher.rollback(num_tokens)
        except BaseException as error:
            _raise_panic(error)
            raise
        self._check(is_done, f"cannot take back {num_tokens} tokens")

    def restart(self) -> None:
        """As `Restarting.restart`; the time that was spent stays."""
        self.__dict__.pop("_matcher", None)

    def foresee(self) -> Sequence[int]:
        """As `Foreseeing.foresee`."""
        matcher = self._matcher
        began = self._clock()
        try:
            text = matcher.compute_ff_bytes()
        except BaseException as error:
            _raise_panic(error)
            raise
        try:
            self._spend(self._clock() - began)
        except InvalidParameterError:
            return ()  # the next mask says so
        return self._made_by.vocabulary.usual_tokens(text) if text else ()

    def _spend(self, seconds: float) -> None:
        """Count processor time, behind a slow call.

        Raises:
            InvalidParameterError: it is at an end.
        """
        is_slow, is_measured = seconds > SLOW_SECONDS, self._clock is time.thread_time
        if not (is_slow or is_measured):  # most
            return
        self._num_measured = 0 if is_slow else self._num_measured + 1
        self._clock = time.thread_time if self._num_measured < MEASURED_CALLS else time.perf_counter
        if is_measured:
            self._spent += seconds
        if self._spent > MOST_SECONDS:
            told = f"following the form took {self._spent:.1f} s of a processor so far; make it simpler"
            raise InvalidParameterError(f"structured_outputs: {told}", param="structured_outputs")

    def _check(self, is_well: bool, told: str) -> None:
        if not is_well:
            error = self._matcher.get_error().partition("<non-verbose/>")[0].strip()
            told = f"structured_outputs: the grammar {told}: {error:.300}"
            raise InvalidParameterError(told, param="structured_outputs")


def _raise_panic(error: BaseException) -> None:
    """Raise an error of the request for a panic of the library, which is no `Exception`."""
    if type(error).__name__ == "PanicException":
        raise RequestFailedError(f"structured_outputs: llguidance failed: {error!s:.300}") from error
