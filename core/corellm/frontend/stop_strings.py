"""Finds stop strings in a text that comes in pieces.

Knows text only: no tokens, no tokenizers, no requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class StopStringMatcher:
    """Finds the first stop string in a text that comes in pieces, and holds back what may become one.

    The first match is the one that ends first, for a text must stop as soon as it holds a stop string; of those that
    end together, the longest. So the result does not depend on how the text is cut into pieces. Only a real beginning
    of a stop string at the end of the text is held back.

    Some of the text, that of special tokens, may be left out of the returned text. A stop string that holds the text
    of one is searched in the text with them, every other one in the text without.

    Every character moves one Knuth-Morris-Pratt automaton per stop string; no text is read twice.

    Args:
        stop: the stop strings, none empty.
        include: whether a match is returned, or only the text before it.
        left_out: the texts that may be left out.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False, left_out: Collection[str] = ()) -> None:
        self._stop = sorted(stop, key=len, reverse=True)
        self._reads_left_out = [any(text in string for text in left_out) for string in self._stop]
        self._fallbacks = [_fallbacks(string) for string in self._stop]
        self._matched_lengths = [0] * len(self._stop)
        self._held = ""
        self._is_left_out: list[bool] = []
        """One per held-back character."""
        self._include = include
        self.matched: str | None = None
        """The stop string that was found; no text is returned after it."""

    def append(self, text: str, *, left_out: bool = False) -> str:
        """Take in new text; returns the text that is certain now, and sets `matched` at the first stop string."""
        if self.matched is not None:
            return ""
        start = len(self._held)
        self._held += text
        self._is_left_out += [left_out] * len(text)
        for position in range(start, len(self._held)):
            found = self._step(self._held[position], left_out)
            if found is not None:
                before = self._release(self._beginning(found, len(self._stop[found]), position + 1))
                self.matched = self._stop[found]
                self._held, self._is_left_out = "", []
                return before + self.matched if self._include else before
        end = len(self._held)
        return self._release(
            min((self._beginning(i, length, end) for i, length in enumerate(self._matched_lengths)), default=end)
        )

    def skip(self, text: str) -> str:
        """Take in text in which no stop string may be found or begin (`min_tokens`); returns the certain text."""
        released = self.flush() + text
        self._matched_lengths = [0] * len(self._stop)
        return "" if self.matched is not None else released

    def flush(self) -> str:
        """Return the text still held back, at the end."""
        return self._release(len(self._held))

    def _step(self, character: str, left_out: bool) -> int | None:
        """Move the automata that read this character; returns the first stop string that it completes."""
        found = None
        for i, (string, fallbacks) in enumerate(zip(self._stop, self._fallbacks, strict=True)):
            if left_out and not self._reads_left_out[i]:
                continue
            length = self._matched_lengths[i]
            while length and string[length] != character:
                length = fallbacks[length - 1]
            length += string[length] == character
            self._matched_lengths[i] = length
            if length == len(string) and found is None:
                found = i
        return found

    def _beginning(self, i: int, length: int, end: int) -> int:
        """Position in the held-back text where the last `length` characters before `end` begin.

        Only characters that stop string `i` reads are counted.
        """
        while length:
            end -= 1
            length -= self._reads_left_out[i] or not self._is_left_out[end]
        return end

    def _release(self, count: int) -> str:
        """Release the first held-back characters; returns those that are not left out."""
        released = self._held[:count]
        if True in self._is_left_out:
            released = "".join(c for c, out in zip(released, self._is_left_out[:count], strict=True) if not out)
        self._held, self._is_left_out = self._held[count:], self._is_left_out[count:]
        return released


def _fallbacks(string: str) -> list[int]:
    """Lengths, for every prefix, of its longest proper prefix that is also its suffix (Knuth, Morris, Pratt 1977)."""
    table = [0] * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = table[length - 1]
        length += string[i] == string[length]
        table[i] = length
    return table
