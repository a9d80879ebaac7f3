"""A text, and where in it the last tokens of a sequence came before.

Knows tokens; knows neither requests nor what is made of a place. Each run of a few tokens leads to its newest place,
and from there to the ones before (the hash chains of LZ77 compressors): to add a token and to look a sequence up take
a time that does not depend on the text's length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NONE = -1
"""No token: what ends a text, and what is behind its end."""
_MOST_PLACES = 8
"""Places that are compared at a look-up, from the newest on."""


class Place(NamedTuple):
    """Where a text goes on."""

    text: Text
    position: int
    """Position of the next token, counted from the first that the text ever had."""
    length: int
    """How many tokens before it are the sequence's last ones, as far as they were compared."""

    @property
    def token(self) -> int:
        """The next token; `NONE` if there is none, or the text has dropped it."""
        return self.text.token(self.position)

    def behind(self) -> Place:
        """Return the place behind the next token, which the sequence has got, too."""
        return Place(self.text, self.position + 1, self.length + 1)

    def ahead(self, index: int) -> int:
        """Return the token `index` further; behind the text's end, those from here on again: it goes in a circle."""
        left = self.text.end - self.position
        return self.text.token(self.position + index % left) if left > 0 else NONE


class Text:
    """Tokens that grow at the end and may be dropped from the beginning.

    Args:
        shortest: fewest tokens by which a place is found.
        longest: most tokens that are compared.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self._tokens = array("q")
        self._before = array("q")
        """Earlier place of the same run, by token, as a position behind the run; 0 for none."""
        self._newest: dict[int, int] = {}
        """Newest place of a run, by its hash."""
        self._last_run = 0
        """The hash of the last run."""
        self._first = 0
        """Position of the first token that is left."""

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self._first + len(self._tokens)

    def token(self, position: int) -> int:
        """Return a token; `NONE` where there is none."""
        index = position - self._first
        return self._tokens[index] if 0 <= index < len(self._tokens) else NONE

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        start = len(self._tokens)
        self._tokens.extend(tokens)
        stop = len(self._tokens)
        first_run = max(start, self.shortest - 1)  # index of the first token that ends a run
        if start < first_run:
            self._before.extend([0] * (min(first_run, stop) - start))
        newest, before = self._newest, self._before
        for position, run in enumerate(self._runs(first_run, stop), self._first + first_run + 1):
            before.append(newest.get(run, 0))
            newest[run], self._last_run = position, run

    def drop(self, count: int) -> None:
        """Drop the first tokens; positions stay. Runs that lose their beginning are found no more."""
        lost = self._runs(self.shortest - 1, min(count + self.shortest - 1, len(self._tokens)))
        for position, run in enumerate(lost, self._first + self.shortest):
            if self._newest.get(run) == position:
                del self._newest[run]
        del self._tokens[:count]
        del self._before[:count]
        self._first += count

    def _runs(self, start: int, stop: int) -> Iterable[int]:
        """Return hashes of the runs that end in the tokens of these indices."""
        if start + 1 == stop:  # most
            return (hash(tuple(self._tokens[start - self.shortest + 1 : stop])),)
        tokens = self._tokens[start - self.shortest + 1 : stop]
        return map(hash, zip(*(tokens[i:] for i in range(self.shortest)), strict=False))

    def find(self, sequence: Text) -> Place | None:
        """Return the place before which most of a sequence's last tokens stand, of those the newest; None if none has.

        Args:
            sequence: this text itself, or another of the same `shortest`.
        """
        if len(sequence) < self.shortest:
            return None
        position = self._before[-1] if sequence is self else self._newest.get(sequence._last_run, 0)
        if position <= self._first:
            return None
        last = sequence._tokens[-self.longest :]
        last.reverse()
        found, longest = 0, self.shortest - 1
        for _ in range(_MOST_PLACES):
            if position <= self._first or longest == len(last):
                break
            length = self._common(position, last)
            if length > longest:
                found, longest = position, length
            position = self._before[position - self._first - 1]
        return Place(self, found, longest) if found else None

    def _common(self, position: int, last: Sequence[int]) -> int:
        """Return how many of the tokens before a position are a sequence's last ones, which come backwards."""
        tokens, index, length = self._tokens, position - self._first - 1, 0
        for token in last:
            if index < 0 or tokens[index] != token:
                break
            index, length = index - 1, length + 1
        return length
