"""The tokens of an item in a prompt, as the Hugging Face processor makes them.

Knows processors and tokenizers by what they say of themselves; knows no model family and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

ARGUMENT = {"image": "images", "video": "videos", "audio": "audio"}
"""The argument of a processor for the media of a modality."""

_NAMES = ("{}_token", "boi_token", "boa_token", "start_{}_token", "{}_start_token", "fake_{}_token")
"""Attributes of processors and tokenizers that may hold the text that users write for an item."""


def candidates(processor: Any, modality: str) -> Iterator[str]:
    """Yield the texts that may stand for an item, the likeliest first."""
    seen = set[str]()
    for name in _NAMES:
        for owner in (processor, processor.tokenizer):
            text = getattr(owner, name.format(modality), None)
            if isinstance(text, str) and text and text not in seen:
                seen.add(text)
                yield text


def between(tokens: Sequence[int], bare: Sequence[int], target: Sequence[int]) -> list[int] | None:
    """Return what of an expanded prompt stands in the place of `target`.

    Args:
        tokens: of the prompt with the item.
        bare: the tokenizer's tokens for the same prompt, `target` and what it adds around it.
        target: of the placeholder's text alone.

    Returns:
        The tokens; None where those around it differ.
    """
    before = next((i for i in range(len(bare)) if list(bare[i : i + len(target)]) == list(target)), None)
    if before is None:
        return None
    after = len(bare) - before - len(target)
    if len(tokens) < before + after or list(tokens[:before]) != list(bare[:before]):
        return None
    if after and list(tokens[len(tokens) - after :]) != list(bare[len(bare) - after :]):
        return None
    return list(tokens[before : len(tokens) - after])


def expanded(
    bare: Sequence[int], target: Sequence[int], items: Sequence[Sequence[int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a prompt with items in the places of `target`, in order, and where each is, `[start, end)`."""
    tokens, spans, left, at = list[int](), list[tuple[int, int]](), list(items), 0
    while at < len(bare):
        if left and list(bare[at : at + len(target)]) == list(target):
            spans.append((len(tokens), len(tokens) + len(left[0])))
            tokens += left.pop(0)
            at += len(target)
        else:
            tokens.append(bare[at])
            at += 1
    return tokens, spans
