"""Words that must not be generated, as token sequences.

Knows tokenizers; does not know how sequences are banned.
"""

from __future__ import annotations

from collections.abc import Callable

_BEFORE = ("\n", "(", "1")
"""Texts to try directly before a word; one that merges with the word is skipped."""


def word_sequences(
    word: str, tokenize: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> list[tuple[int, ...]]:
    """Return the token sequences of a word; spaces before it do not matter.

    It is tokenized at the beginning of a text, after a space, and directly after other text: sentencepiece tokenizers
    put a space before every text, so only the last form is without a space.

    Args:
        word: not empty.
        tokenize: text to token ids, nothing added.
        decode: token ids to text.
    """
    stem = word.lstrip() or word
    found = (tokenize(stem), tokenize(" " + stem), _directly_after_text(stem, tokenize, decode))
    return [tuple(ids) for ids in found if ids]


def _directly_after_text(
    word: str, tokenize: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> list[int]:
    for before in _BEFORE:
        first, both = tokenize(before), tokenize(before + word)
        is_apart = both[: len(first)] == first
        if is_apart and decode(both) == decode(first) + word:
            return both[len(first) :]
    return []
