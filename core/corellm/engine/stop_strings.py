"""Finding stop strings in a text that comes in pieces.

Knows text only: no tokens, no tokenizers, no requests.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Finds the first stop string in a text that comes in pieces, and holds back what may become one.

    The first match is the one that ends first, for a text must stop as soon as it holds a stop string; of those that
    end together, the longest. So the result does not depend on how the text is cut into pieces. Only a real beginning
    of a stop string at the end of the text is held back.

    Every character moves one Knuth-Morris-Pratt automaton per stop string; no text is looked at twice.

    Args:
        stop: the stop strings, none empty.
        include: whether a match is given out, or only the text before it.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        self._stop = sorted(stop, key=len, reverse=True)
        self._fallbacks = [_fallbacks(string) for string in self._stop]
        self._matched_lengths = [0] * len(self._stop)
        self._held = ""
        self._include = include
        self.matched: str | None = None
        """The stop string that was found; nothing is given out after it."""

    def append(self, text: str) -> str:
        """Take in new text; returns what may be given out now, and sets `matched` at the first stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        for position in range(len(self._held), len(text)):
            found = self._step(text[position])
            if found is not None:
                self.matched, self._held = found, ""
                return text[: position + 1] if self._include else text[: position + 1 - len(found)]
        held = max(self._matched_lengths, default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def skip(self, text: str) -> str:
        """Take in text in which no stop string may be found or begin (`min_tokens`); returns what may be given out."""
        released = self.flush() + text
        self._matched_lengths = [0] * len(self._stop)
        return "" if self.matched is not None else released

    def flush(self) -> str:
        """The text still held back, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        found = None
        for i, (string, fallbacks) in enumerate(zip(self._stop, self._fallbacks, strict=True)):
            length = self._matched_lengths[i]
            while length and string[length] != character:
                length = fallbacks[length - 1]
            length += string[length] == character
            self._matched_lengths[i] = length
            if length == len(string) and found is None:
                found = string
        return found


def _fallbacks(string: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that is also its suffix (Knuth, Morris, Pratt 1977)."""
    table = [0] * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = table[length - 1]
        length += string[i] == string[length]
        table[i] = length
    return table
