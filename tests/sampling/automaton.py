"""A constraint to test with: an automaton over token ids, and the extension that makes it.

Which tokens may come next depends on the ids of all before, so that a token that is missed, or taken in twice, shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from corellm.errors import InvalidParameterError
from corellm.hookspecs import hookimpl
from corellm.plugin.extensions import load_extensions
from corellm.sampling.constraint import TokenMask
from corellm.sampling_params import ConstraintParams

_STATES = 7


def automaton(length: int = 1000, *, start: int = 0, fails: str = "", at: int = 0) -> ConstraintParams:
    """An automaton whose output may end after `length` tokens, and then must.

    Args:
        length: of the output, without the token that ends it.
        start: its first state.
        fails: the method that raises an error, or "no token" to allow none, or "always" to fail when it is made.
        at: after how many tokens.
    """
    return ConstraintParams("automaton", json.dumps([length, start, fails, at]))


def allowed(outputs: Sequence[int], vocab_size: int, *, start: int = 0) -> list[int]:
    """The tokens that may follow, but for the end; from nothing but the output."""
    state = start
    for token in outputs:
        state = (3 * state + token) % _STATES
    return [token for token in range(vocab_size) if token % _STATES in (state, (state + 2) % _STATES)]


class Automaton:
    """A `Constraint`, which knows its state only."""

    def __init__(self, definition: str, stop_token_ids: frozenset[int] | None, vocab_size: int) -> None:
        try:
            self._length, state, self._fails, self._at = json.loads(definition)
        except ValueError as error:
            raise InvalidParameterError(f"no automaton: {definition!r}", param="constraint") from error
        self._stop_token_ids, self._vocab_size = stop_token_ids, vocab_size
        self._states = [state]
        self._raise_in("always")

    def fill(self, mask: TokenMask) -> None:
        self._raise_in("fill")
        if self._fails == "no token" and self._num_accepted == self._at:
            return
        may = np.zeros(32 * len(mask), dtype=np.bool_)
        may[self._vocab_size :] = True  # which has no meaning
        if self._num_accepted < self._length:
            state = self._states[-1]
            may[state::_STATES] = may[(state + 2) % _STATES :: _STATES] = True
        else:
            may[list(self._stop_token_ids or ())] = True
        mask |= np.packbits(may, bitorder="little").view(np.int32)

    def accept(self, token_id: int) -> None:
        self._raise_in("accept")
        self._states.append((3 * self._states[-1] + token_id) % _STATES)

    def rollback(self, num_tokens: int) -> None:
        del self._states[len(self._states) - num_tokens :]

    @property
    def _num_accepted(self) -> int:
        return len(self._states) - 1

    def _raise_in(self, method: str) -> None:
        if self._fails == method and self._num_accepted == self._at:
            raise RuntimeError(f"the automaton fails in {method}")


class Automata:
    """The extension."""

    @hookimpl
    def register_constraints(self, tokenizer: Any, vocab_size: int) -> Any:
        return {"automaton": lambda definition, stops: Automaton(definition, stops, vocab_size)}


@contextmanager
def automata() -> Iterator[None]:
    """Have the extension as if it were installed."""
    extension = Automata()
    load_extensions().register(extension, name="the extension of the tests")
    try:
        yield
    finally:
        load_extensions().unregister(extension)
