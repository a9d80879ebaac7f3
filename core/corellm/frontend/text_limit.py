"""Refuses a text that is far too long before it is tokenized, by the most text that a number of tokens can hold.

Knows tokenizers of the `tokenizers` library and which of their steps lose text. Where any text can become one unknown
token, or none, there is no limit here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from corellm.errors import PromptTooLongError

CHEAP_CHARACTERS = 100_000
"""A text up to this long is tokenized in some 50 ms, and is not checked."""

_SLACK = 2
"""Allowance for placeholders that are longer in the prompt's text than the tokens of their items."""
_COMPOSED = 4
"""Most characters that composing (NFC) joins to one."""
_KEEP_TEXT = {"Prepend", "NFD", "NFKD", "Lowercase", "ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
_LOSE_SPACE = {"Strip", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"}
_SPACE_PATTERNS = ({"Regex": " {2,}"}, {"Regex": " +"}, {"Regex": "\\s+"})
_SPACE_BYTES = str.maketrans("", "", "ĠĊĉč")
"""Space, line feed, tab and carriage return in a byte-level vocabulary."""
_BYTE_CHARACTERS = 256


class TextLimit:
    """Refuses texts that are too long whatever their tokens are.

    Args:
        tokenizer: of the `tokenizers` library; None for another one, whose texts are not limited.
        max_model_len: longest sequence.
    """

    def __init__(self, tokenizer: Any | None, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def check(self, text: str) -> None:
        """Refuse a text that can never fit; one that passes may still be too long.

        Raises:
            PromptTooLongError: with both numbers.
        """
        if len(text) <= max(CHEAP_CHARACTERS, _SLACK * self._max_model_len) or self._capacity is None:
            return
        of_any, solid = self._capacity
        if of_any is not None:
            self._compare(len(text), of_any, "characters")
        self._compare(sum(map(len, text.split())), solid, "characters that are not white space")

    def _compare(self, length: int, per_token: int, kind: str) -> None:
        limit = self._max_model_len * per_token
        if length > _SLACK * limit:
            raise PromptTooLongError(
                f"the prompt has {length} {kind}, and max_model_len={self._max_model_len} tokens hold at most {limit}; "
                "shorten the prompt, or raise max_model_len if the model was trained for more"
            )

    @cached_property
    def _capacity(self) -> tuple[int | None, int] | None:
        """Most characters that one token stands for: of any (None where white space may be lost), and of solid ones."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return None
        steps = [*_steps(tokenizer.normalizer), *_steps(tokenizer.pre_tokenizer)]
        is_bytes = any(step["type"] == "ByteLevel" for step in steps)
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        if not all(map(_keeps_text, steps)) or not _knows_everything(tokenizer.model, vocabulary, is_bytes):
            return None
        added = tokenizer.get_added_tokens_decoder().values()
        loses_space = any(map(_loses_space, steps)) or any(token.lstrip or token.rstrip for token in added)
        composed = _COMPOSED if any(step["type"] in ("NFC", "NFKC") for step in steps) else 1
        longest_added = max((len(token.content) for token in added), default=1)
        longest = max(longest_added, *map(len, vocabulary))
        solid = longest if not is_bytes else max(longest_added, *(len(t.translate(_SPACE_BYTES)) for t in vocabulary))
        return None if loses_space else longest * composed, solid * composed


def _steps(component: Any | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, in order."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step["type"] != "Sequence":
        yield step
    for inner in step.get("normalizers", step.get("pretokenizers", ())):
        yield from _flat(inner)


def _keeps_text(step: Mapping[str, Any]) -> bool:
    """Whether a step makes a text no shorter, but for white space and composed characters."""
    if step["type"] == "Replace":
        given = step["pattern"].get("String")
        return _loses_space(step) or (given is not None and len(step["content"]) >= len(given))
    if step["type"] in ("Split", "Punctuation"):
        return bool(step["behavior"] != "Removed")
    return step["type"] in _KEEP_TEXT or step["type"] in ("NFC", "NFKC") or _loses_space(step)


def _loses_space(step: Mapping[str, Any]) -> bool:
    return step["type"] in _LOSE_SPACE or (step["type"] == "Replace" and step["pattern"] in _SPACE_PATTERNS)


def _knows_everything(model: Any, vocabulary: Mapping[str, int], is_bytes: bool) -> bool:
    """Whether there is a token for every byte, so that no text is unknown or dropped."""
    if is_bytes and type(model).__name__ == "BPE":
        from tokenizers.pre_tokenizers import ByteLevel

        return all(character in vocabulary for character in ByteLevel.alphabet())
    if json.loads(model.__getstate__()).get("byte_fallback"):
        return all(f"<0x{value:02X}>" in vocabulary for value in range(_BYTE_CHARACTERS))
    return False
