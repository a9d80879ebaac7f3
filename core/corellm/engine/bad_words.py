"""Words that must not be generated, as token sequences.

Knows tokenizers; does not know how a sequence is kept from being completed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BEFORE = ("\n", "(", "1")
"""What may stand directly before a word. One that merges with the word, or is read as a space, is passed over."""


def bad_words_ids(
    words: Sequence[str], tokenize: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> list[list[int]]:
    """The token sequences of each word: at the beginning of a text, after a space, and directly after other text.

    Tokenizers of the sentencepiece kind put a space before every text, so the last form is in none of the others.

    Args:
        words: spaces before them do not matter.
        tokenize: text to token ids, nothing added.
        decode: token ids to text.
    """
    sequences: list[list[int]] = []
    for word in words:
        stem = word.lstrip() or word
        for ids in (tokenize(stem), tokenize(" " + stem), _directly_after_text(stem, tokenize, decode)):
            if ids and ids not in sequences:
                sequences.append(ids)
    return sequences


def _directly_after_text(
    word: str, tokenize: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> list[int]:
    for before in _BEFORE:
        first, both = tokenize(before), tokenize(before + word)
        is_apart = both[: len(first)] == first
        if is_apart and decode(both) == decode(first) + word:
            return both[len(first) :]
    return []
