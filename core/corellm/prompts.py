"""The forms of a prompt: types to annotate with, and how one prompt is told from many.

Knows lists, arrays and tensors by their shape, without importing numpy or torch; knows no tokenizers and no limits.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypeAlias, TypedDict

from corellm.errors import InvalidParameterError, PromptError


class _WithItems(TypedDict):
    """Keys that both kinds of prompt may have."""

    multi_modal_data: NotRequired[Mapping[str, Any] | None]
    """`{"image": ..., "video": ..., "audio": ...}`, one item or a list."""
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    """Arguments of the family's processor for this request."""
    multi_modal_uuids: NotRequired[Mapping[str, Any] | None]
    """Your own names for items, instead of hashing their content."""
    cache_salt: NotRequired[str | None]
    """Requests share cached prefixes only with those of the same salt."""
    priority: NotRequired[int]
    """Lower runs first, with `LLM(..., scheduling_policy="priority")`."""


class TextPrompt(_WithItems):
    """A prompt as text."""

    prompt: str
    text_pair: NotRequired[str | None]
    """A second text, of encoder-only models: both are joined as the tokenizer joins pairs."""
    prompt_name: NotRequired[str | None]
    """Which of the checkpoint's own prompts is put before the text, of models of sentence-transformers."""


class TokensPrompt(_WithItems):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]
    """A list, or an array or tensor of one dimension; placeholders not expanded."""
    prompt: NotRequired[str | None]
    """The text they came from; outputs repeat it."""


LORA_KEY = "lora_request"
"""The key of a prompt that has a LoRA adapter, which `corellm-lora` reads."""
PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt
"""One prompt in any form."""


def split_prompts(given: Any) -> list[Any]:
    """The list of prompts that `generate` was given: as one prompt, or as any iterable of prompts.

    A list of integers, or an array of one dimension, is one prompt of token ids. A list of lists has a prompt per
    list, an array of two dimensions a prompt per row.
    """
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        return [given]
    if getattr(given, "ndim", None) in (0, 1):
        return [given]
    prompts = list(given)
    return [prompts] if prompts and all(map(_is_integer, prompts)) else prompts


def is_conversation(given: Any) -> bool:
    """Whether a prompt is one conversation: a list of messages."""
    return isinstance(given, (list, tuple)) and bool(given) and isinstance(given[0], Mapping) and "role" in given[0]


def is_token_ids(given: Any) -> bool:
    """Whether a prompt is token ids alone: a list, an array or a tensor."""
    return hasattr(given, "tolist") or (isinstance(given, Sequence) and not isinstance(given, (str, bytes)))


def priority_of_each(given: Sequence[int], count: int) -> Sequence[int]:
    """The priorities that `generate` was given for its prompts, in place of their own.

    Raises:
        InvalidParameterError: not one for each prompt.
    """
    if not isinstance(given, Sequence) or len(given) != count:
        raise InvalidParameterError(
            f"priority must be a list of one integer for each of the {count} prompts, got {given!r:.100}",
            param="priority",
        )
    return given


def plain_token_ids(given: Any) -> list[int]:
    """Token ids as a list of Python's own integers.

    Raises:
        PromptError: not a list of integers.
    """
    listed = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Sequence):
        raise PromptError(f"prompt_token_ids must be a list of integers, got {given!r:.100}")
    return [token if type(token) is int else _integer(token) for token in listed]


def _integer(token: Any) -> int:
    if not _is_integer(token):
        raise PromptError(f"prompt_token_ids must be a list of integers, but holds {type(token).__name__}")
    return operator.index(token)


def _is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python, numpy or torch; booleans and arrays are not."""
    if isinstance(value, bool) or getattr(value, "ndim", None):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded, i.e. has no lone surrogates (from wrongly decoded bytes)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def keys_of_each(given: Any, count: int) -> list[Mapping[str, Any] | None]:
    """Return the keys that prompts get for `lora_request`, which is one for all, a list of one each, or None.

    Raises:
        InvalidParameterError: not one for each prompt.
    """
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if is_list and len(given) != count:
        raise InvalidParameterError(
            f"lora_request has {len(given)} entries for {count} prompts; give one for all, or one each", param=LORA_KEY
        )
    return [None if one is None else {LORA_KEY: one} for one in (given if is_list else [given] * count)]


def with_keys(given: Any, keys: Mapping[str, Any] | None) -> Any:
    """Return the keys that a call was given for a prompt, with those of `keys_of_each`."""
    return {**given, **keys} if keys and isinstance(given, Mapping) else given or keys
