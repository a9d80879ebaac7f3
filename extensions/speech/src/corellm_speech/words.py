"""When tokens and words are heard: the path through attention that goes forward in both.

The rules are those of transformers' `generate(return_token_timestamps=True)` and of its Whisper tokenizer. Knows
attention as numbers, and text; knows no models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm_speech.segments import Segment, Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WITHOUT_SPACES = frozenset({"chinese", "japanese", "thai", "lao", "myanmar", "cantonese"})
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_OPENS = "\"'“¡¿([{-"
_CLOSES = "\"'.。,，!！?？:：”)]}、"
_BROKEN = "\ufffd"


def first_steps(rows: NDArray[np.float32]) -> list[int]:
    """Return the step at which each token is first heard, by dynamic time warping.

    Args:
        rows: how strongly tokens attend to steps, `[num_tokens, num_steps]`.
    """
    num_tokens, num_steps = rows.shape
    moves = _moves(-rows.astype(np.float64))
    token, step = num_tokens, num_steps
    first = [0] * num_tokens
    while token > 0 or step > 0:
        if token > 0:
            first[token - 1] = max(0, step - 1)
        move = 2 if token == 0 else 1 if step == 0 else moves[token, step]
        token -= move != 2
        step -= move != 1
    return first


def _moves(costs: NDArray[np.float64]) -> NDArray[np.int8]:
    """Return by which move the cheapest path comes to each place: 0 of both, 1 of tokens, 2 of steps.

    Places of one diagonal depend on earlier ones alone, and are computed at once.
    """
    num_tokens, num_steps = costs.shape
    total = np.full((num_tokens + 1, num_steps + 1), np.inf, dtype=np.float32)
    moves = np.full(total.shape, -1, dtype=np.int8)
    total[0, 0] = 0
    for diagonal in range(2, num_tokens + num_steps + 1):
        i = np.arange(max(1, diagonal - num_steps), min(num_tokens, diagonal - 1) + 1)
        j = diagonal - i
        both, token, step = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        is_both, is_token = (both < token) & (both < step), (token < both) & (token < step)
        moves[i, j] = np.where(is_both, 0, np.where(is_token, 1, 2))
        total[i, j] = costs[i - 1, j - 1] + np.where(is_both, both, np.where(is_token, token, step))
    return moves


def words_of(
    segments: Iterable[Segment], is_text: Callable[[int], bool], tokenizer: Any, language: str | None
) -> list[Word]:
    """Return the words of segments with times of tokens.

    A word begins where the token before it was heard, as transformers has it.

    Args:
        segments: of one audio item.
        is_text: whether a token is one of text.
        tokenizer: the model's.
        language: that is spoken; None if that is not known.
    """
    words, before = [], 0.0
    for segment in segments:
        pairs = zip(segment.token_ids, [before, *segment.token_times], segment.token_times, strict=False)
        spoken = [(token, start, end) for token, start, end in pairs if is_text(token)]
        for text, places in grouped([token for token, _, _ in spoken], tokenizer, language):
            start, end = spoken[places[0]][1], spoken[places[-1]][2]
            words.append(Word(round(start, 2), round(end, 2), text))
        before = segment.token_times[-1] if segment.token_times else before
    return words


def grouped(tokens: Sequence[int], tokenizer: Any, language: str | None) -> list[tuple[str, list[int]]]:
    """Return the words of a text, each with the places of its tokens, punctuation beside the words that it is at."""
    words: list[tuple[str, list[int]]] = []
    for text, places in _characters(tokens, tokenizer):
        begins = text.startswith(" ") or text.strip() in _PUNCTUATION
        if not words or begins or language in _WITHOUT_SPACES:
            words.append((text, places))
        else:
            words[-1] = (words[-1][0] + text, [*words[-1][1], *places])
    return _with_punctuation(words)


def _characters(tokens: Sequence[int], tokenizer: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield the shortest runs of tokens that are whole characters."""
    whole, at = tokenizer.decode(list(tokens)), 0
    run: list[int] = []
    for place in range(len(tokens)):
        run.append(place)
        text: str = tokenizer.decode([tokens[i] for i in run])
        broken = at + text.find(_BROKEN)
        if _BROKEN not in text or broken >= len(whole) or whole[broken] == _BROKEN:
            yield text, run
            run, at = [], at + len(text)


def _with_punctuation(words: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Return words with what opens them before, and what closes them behind."""
    opened: list[tuple[str, list[int]]] = []
    for text, places in reversed(words):
        if opened and text.startswith(" ") and text.strip() in _OPENS:
            opened[-1] = (text + opened[-1][0], [*places, *opened[-1][1]])
        else:
            opened.append((text, places))
    closed: list[tuple[str, list[int]]] = []
    for text, places in reversed(opened):
        if closed and not closed[-1][0].endswith(" ") and text in _CLOSES:
            closed[-1] = (closed[-1][0] + text, [*closed[-1][1], *places])
        else:
            closed.append((text, places))
    return closed
