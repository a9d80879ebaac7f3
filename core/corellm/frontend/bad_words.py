"""Words that must not be generated, as token sequences.

Knows tokenizers; does not know how sequences are banned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

_BEFORE = ("\n", "(", "1")
"""Texts to try directly before a word; one that merges with the word is skipped."""


class BadWords:
    """Finds the token sequences of words, and caches them.

    A word is tokenized at the beginning of a text, after a space, and directly after other text: sentencepiece
    tokenizers put a space before every text, so only the last form is without a space.

    Args:
        tokenize: text to token ids, nothing added.
        decode: token ids to text.
    """

    def __init__(self, tokenize: Callable[[str], list[int]], decode: Callable[[list[int]], str]) -> None:
        self._tokenize, self._decode = tokenize, decode
        self._of_word = lru_cache(maxsize=1024)(self._find)

    def __call__(self, words: Sequence[str]) -> list[list[int]]:
        """The distinct sequences of some words. Spaces before a word do not matter."""
        return [list(ids) for ids in dict.fromkeys(ids for word in words for ids in self._of_word(word))]

    def _find(self, word: str) -> list[tuple[int, ...]]:
        stem = word.lstrip() or word
        found = (self._tokenize(stem), self._tokenize(" " + stem), self._directly_after_text(stem))
        return [tuple(ids) for ids in found if ids]

    def _directly_after_text(self, word: str) -> list[int]:
        for before in _BEFORE:
            first, both = self._tokenize(before), self._tokenize(before + word)
            is_apart = both[: len(first)] == first
            if is_apart and self._decode(both) == self._decode(first) + word:
                return both[len(first) :]
        return []
