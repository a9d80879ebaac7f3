"""Reasoning before a form: the grammar of an output that may begin with it, and the bound on its tokens.

Knows markers and their tokens; knows no form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property

from corellm.sampling.constraint import Foreseeing, Restarting, TokenMask
from corellm.structured_outputs import ReasoningParams
from corellm_structured.vocabulary import Marker, Vocabulary

_SPACE = r"/[ \n]{0,2}/"
"""Between the reasoning and the form."""


def grammar_around(reasoning: ReasoningParams, vocabulary: Vocabulary) -> str:
    """Return the grammar of an output whose form, `@form`, may have reasoning before it."""
    start, end = vocabulary.marker(reasoning.start), vocabulary.marker(reasoning.end)
    if end.is_special:
        spelt = re.escape(end.text).replace("/", r"\/")
        inner = f"thought: TEXT {_symbol(end)}\nTEXT: /(?s:.*)/ & ~/(?s:.*){spelt}(?s:.*)/"
    else:
        inner = f"thought[suffix={_symbol(end)}]: /(?s:.*)/"
    opening = _symbol(start)
    before = f"({opening} thought {_SPACE})?"
    if reasoning.is_begun:  # a model may open it again: a marker that is text is text of it
        before = f"{opening}? thought {_SPACE}" if start.is_special else f"thought {_SPACE}"
    return f"start: {before} @form\n{inner}"


def _symbol(marker: Marker) -> str:
    return f"<[{marker.token_ids[0]}]>" if marker.is_special else json.dumps(marker.text, ensure_ascii=False)


class AnyTokens:
    """A `Constraint` that allows all tokens."""

    def fill(self, mask: TokenMask) -> None:
        """As `Constraint.fill`."""
        mask[:] = -1

    def accept(self, token_id: int) -> None:
        """As `Constraint.accept`."""

    def rollback(self, num_tokens: int) -> None:
        """As `Constraint.rollback`."""

    def foresee(self) -> Sequence[int]:
        """As `Foreseeing.foresee`."""
        return ()


class BoundedReasoning:
    """A `Constraint` that ends reasoning after a number of tokens: then only its marker's tokens may come.

    Args:
        inner: what the output is held to besides. Where it does not allow the marker to begin, as within a character,
            reasoning goes on until it does.
        reasoning: has a bound.
        vocabulary: of the model.
    """

    def __init__(self, inner: Foreseeing, reasoning: ReasoningParams, vocabulary: Vocabulary) -> None:
        assert reasoning.max_tokens is not None
        self._inner, self._reasoning, self._vocabulary = inner, reasoning, vocabulary
        self._most = reasoning.max_tokens
        self._texts: list[bytes] = []
        """Texts of the tokens so far."""
        self._begun = 0 if reasoning.is_begun else None
        """How many tokens there were when reasoning had begun, its forced end had begun, it had ended; or None."""
        self._closing: int | None = None
        self._ended: int | None = None

    @cached_property
    def _start(self) -> Marker:
        return self._vocabulary.marker(self._reasoning.start)

    @cached_property
    def _end(self) -> Marker:
        return self._vocabulary.marker(self._reasoning.end)

    def fill(self, mask: TokenMask) -> None:
        """As `Constraint.fill`."""
        self._inner.fill(mask)
        token = self._due()
        if token is not None and (only := mask & self._vocabulary.pack([token])).any():
            mask[:] = only

    def accept(self, token_id: int) -> None:
        """As `Constraint.accept`."""
        self._inner.accept(token_id)
        is_due = token_id == self._due()
        self._texts.append(self._text_of(token_id))
        count = len(self._texts)
        if is_due and self._closing is None:
            self._closing = count
        if self._begun is None:
            start = self._start.text.encode()
            if count <= len(start) + 2 and b"".join(self._texts).lstrip().startswith(start):
                self._begun = count
        elif self._ended is None:
            end = self._end.text.encode()  # no token of it is empty
            if end in b"".join(self._texts[max(self._begun, count - len(end)) :]):
                self._ended = count

    def rollback(self, num_tokens: int) -> None:
        """As `Constraint.rollback`."""
        self._inner.rollback(num_tokens)
        del self._texts[len(self._texts) - num_tokens :]
        places = (self._begun, self._closing, self._ended)
        kept = [None if place is None or place > len(self._texts) else place for place in places]
        self._begun, self._closing, self._ended = kept

    def restart(self) -> None:
        """As `Restarting.restart`."""
        if isinstance(self._inner, Restarting):
            self._inner.restart()
        self._texts = []
        self._begun = 0 if self._reasoning.is_begun else None
        self._closing = self._ended = None

    def foresee(self) -> Sequence[int]:
        """As `Foreseeing.foresee`."""
        return self._left() or self._inner.foresee()

    def _due(self) -> int | None:
        """Return the token that must come, to end reasoning; None if any may."""
        left = self._left()
        return left[0] if left else None

    def _left(self) -> Sequence[int]:
        """Return the tokens of the marker that must come; none if any may."""
        if self._begun is None or self._ended is not None:
            return ()
        place = 0 if self._closing is None else len(self._texts) - self._closing + 1
        is_due = self._closing is not None or len(self._texts) - self._begun >= self._most
        return self._end.token_ids[place:] if is_due else ()

    def _text_of(self, token_id: int) -> bytes:
        for marker in (self._start, self._end):
            if marker.is_special and marker.token_ids == (token_id,):
                return marker.text.encode()
        return self._vocabulary.text_of(token_id)
