"""Two texts as one prompt, as a tokenizer joins them: `[CLS] query [SEP] document [SEP]` and the types of the tokens.

Knows tokenizers of the `tokenizers` library; knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corellm.errors import InvalidParameterError, PromptError
from corellm.frontend.text_tokenizer import TextTokenizer


@dataclass(frozen=True)
class TextPair:
    """What a prompt of two texts is made of, beside its tokens."""

    types: list[int]
    """Type of each token (`token_type_ids`)."""
    first: range
    """Where the tokens of the first text are; special tokens are outside of both."""
    second: range


def encode_pair(tokenizer: TextTokenizer, text: str, other: Any) -> tuple[list[int], TextPair]:
    """Return the tokens of two texts, and where each is.

    Args:
        tokenizer: of the model.
        text, other: the two.

    Raises:
        PromptError: the second is no text, or the tokenizer has no pairs.
    """
    if not isinstance(other, str):
        raise PromptError(f"text_pair must be a string, got {other!r:.100}")
    encoding = tokenizer.pair(text, other)
    if encoding is None:
        raise PromptError("this model's tokenizer does not join pairs of texts; join them in one text, in a template")
    return encoding.ids, TextPair(encoding.type_ids, *(_range_of(encoding.sequence_ids, side) for side in (0, 1)))


def _range_of(sides: Sequence[int | None], wanted: int) -> range:
    found = [index for index, side in enumerate(sides) if side == wanted]
    return range(found[0], found[-1] + 1) if found else range(0)


def truncated_pair(token_ids: Sequence[int], pair: TextPair, kept: int) -> tuple[list[int], TextPair]:
    """Return a pair cut to `kept` tokens: the longer text loses its last ones first, special tokens stay.

    Raises:
        InvalidParameterError: there is no room for special tokens.
    """
    special = len(token_ids) - len(pair.first) - len(pair.second)
    room = kept - special
    if room < 0:
        raise InvalidParameterError(
            f"truncate_prompt_tokens={kept}, but the special tokens of a pair are {special}; keep more",
            param="truncate_prompt_tokens",
        )
    shorter = min(len(pair.first), len(pair.second), room // 2)
    first = shorter if len(pair.first) <= len(pair.second) else room - shorter
    dropped = {*pair.first[first:], *pair.second[room - first :]}
    left = [index for index in range(len(token_ids)) if index not in dropped]
    start = pair.second.start - (len(pair.first) - first)
    return [token_ids[index] for index in left], TextPair(
        [pair.types[index] for index in left],
        range(pair.first.start, pair.first.start + first),
        range(start, start + room - first),
    )
