"""The tokens of an item in a prompt, as the Hugging Face processor makes them.

Knows processors and tokenizers by what they say of themselves; knows no model family and no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ARGUMENT = {"image": "images", "video": "videos", "audio": "audio"}
"""The argument of a processor for the media of a modality."""

_NAMES = (
    "{}_placeholder_token",
    "{}_token",
    "boi_token",
    "boa_token",
    "start_{}_token",
    "{}_start_token",
    "fake_{}_token",
)
"""Attributes of processors and tokenizers that may hold the text that users write for an item."""


def candidates(processor: Any, modality: str) -> Iterator[str]:
    """Yield the texts that may stand for an item, the likeliest first; at last a token between those around it."""
    known = (_stated(processor, name.format(modality)) for name in _NAMES)
    yield from dict.fromkeys(text for text in known if text)
    parts = [_stated(processor, f"{modality}{name}") for name in ("_start_token", "_token", "_end_token")]
    if all(parts):
        yield "".join(parts)


def _stated(processor: Any, name: str) -> str:
    """Return an attribute of a processor or else its tokenizer, if it is text."""
    known = (getattr(owner, name, None) for owner in (processor, processor.tokenizer))
    return next((text for text in known if isinstance(text, str)), "")


def marked(text: str, template: str, special_tokens: Collection[str]) -> str:
    """Return the text of an item with the special tokens that a chat template writes directly around it.

    As the template has them in one piece; the text alone where it has none, or no such text.
    """
    mark = "|".join(re.escape(token) for token in sorted(special_tokens, key=len, reverse=True))
    found = re.search(f"(?:{mark})*{re.escape(text)}(?:{mark})*", template)
    return text if found is None else found[0]


@dataclass(frozen=True)
class Ends:
    """The tokens that a processor puts around every prompt, whose tokenizer does not."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def put(self, tokens: Sequence[int]) -> list[int]:
        """Return a prompt's tokens with these around them."""
        return [*self.before, *tokens, *self.after]


_TEXTS = ("a", "What?", "one \n", "<")


def ends(processor: Any) -> Ends:
    """Return what a processor puts around each of a few texts; nothing where it takes no text alone."""
    found = set[Ends]()
    for text in _TEXTS:
        bare = list(processor.tokenizer(text)["input_ids"])
        try:
            tokens = list(flat(processor(text=text, return_tensors="pt")["input_ids"]))
        except (TypeError, ValueError, KeyError, AttributeError):  # it wants an item
            return Ends()
        starts = [i for i in range(len(tokens) - len(bare), -1, -1) if tokens[i : i + len(bare)] == bare]
        if not starts:
            return Ends()
        found.add(Ends(tuple(tokens[: starts[0]]), tuple(tokens[starts[0] + len(bare) :])))
    return found.pop() if len(found) == 1 else Ends()


def flat(token_ids: Any) -> list[int]:
    """Return the tokens of one prompt, of what a processor returns as `input_ids`."""
    return [int(token) for token in (token_ids[0] if hasattr(token_ids[0], "__len__") else token_ids)]


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
    bare: Sequence[int], targets: Mapping[str, Sequence[int]], items: Sequence[tuple[str, Sequence[int]]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a prompt with items in the places of their modality's target, in order.

    Args:
        bare: the prompt's tokens, with the placeholders' texts.
        targets: `{modality: tokens of its placeholder}`.
        items: modality and tokens of each.

    Returns:
        The tokens, and where each item is, `[start, end)`.
    """
    tokens, spans, left, at = list[int](), list[tuple[int, int]](), list(items), 0
    while at < len(bare):
        target = list(targets[left[0][0]]) if left else []
        if left and list(bare[at : at + len(target)]) == target:
            _, own = left.pop(0)
            spans.append((len(tokens), len(tokens) + len(own)))
            tokens += own
            at += len(target)
        else:
            tokens.append(bare[at])
            at += 1
    return tokens, spans
