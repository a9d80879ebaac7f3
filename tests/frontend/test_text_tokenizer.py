"""Text is encoded as the transformers tokenizer encodes it, whatever state that is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from corellm.frontend.text_tokenizer import TextTokenizer
from corellm.tiny_checkpoints import train_tokenizer

TEXTS = st.lists(
    st.sampled_from(["<image>", "<s>", "</s>", "Hello", " ", "\n", "été", "画像"]) | st.text(max_size=9)
).map("".join)
TOKENIZER = train_tokenizer(["<image>"], bos="<s>", eos="</s>", pad="</s>", add_bos=True)


def with_truncation(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.enable_truncation(2)


def with_padding(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.enable_padding(length=40)


def with_special_tokens_split(tokenizer: Any) -> None:
    tokenizer.split_special_tokens = True


def as_it_is(tokenizer: Any) -> None:
    pass


@pytest.mark.parametrize("state", [as_it_is, with_truncation, with_padding, with_special_tokens_split])
@given(TEXTS, st.booleans())
def test_ids_are_the_tokenizers(state: Callable[[Any], None], text: str, special: bool) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    wanted = tokenizer(text, add_special_tokens=special)["input_ids"]
    if state is with_special_tokens_split:
        wanted = tokenizer(text, add_special_tokens=special, split_special_tokens=True)["input_ids"]
    state(tokenizer)
    assert TextTokenizer(tokenizer)(text, add_special_tokens=special) == wanted


@pytest.mark.parametrize("state", [as_it_is, with_truncation, with_padding])
def test_pairs_are_the_tokenizers(state: Callable[[Any], None]) -> None:
    """Whole, also where the tokenizer's file says to cut or to pad."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    wanted = tokenizer("Hello", "Why is it so?", return_token_type_ids=True)
    state(tokenizer)
    encoding = TextTokenizer(tokenizer).pair("Hello", "Why is it so?")
    assert encoding is not None
    assert (encoding.ids, encoding.type_ids) == (wanted["input_ids"], wanted["token_type_ids"])


def test_a_state_that_changes_later_is_seen() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    encode = TextTokenizer(tokenizer)
    before = encode("Hello there", add_special_tokens=False)
    tokenizer.backend_tokenizer.enable_padding(length=40)
    assert encode("Hello there", add_special_tokens=False) == before
    tokenizer._tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)._tokenizer
    tokenizer.add_tokens(["Hello there"])
    assert encode("Hello there", add_special_tokens=False) == [len(tokenizer) - 1]


class Shouting(PreTrainedTokenizerFast):  # type: ignore[misc]
    def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        return super()._encode_plus(text.upper(), *args, **kwargs)


class Prefixing(PreTrainedTokenizerFast):  # type: ignore[misc]
    def _convert_encoding(self, *args: Any, **kwargs: Any) -> Any:
        columns, encodings = super()._convert_encoding(*args, **kwargs)
        return {"input_ids": [[99, *ids] for ids in columns["input_ids"]]}, encodings


@pytest.mark.parametrize("kind", [Shouting, Prefixing])
def test_a_wrapper_with_ways_of_its_own_is_asked(kind: Any) -> None:
    tokenizer = kind(tokenizer_object=TOKENIZER.backend_tokenizer)
    wanted = tokenizer("hello", add_special_tokens=False)["input_ids"]
    assert wanted != TOKENIZER("hello", add_special_tokens=False)["input_ids"]
    assert TextTokenizer(tokenizer)("hello", add_special_tokens=False) == wanted
    assert TextTokenizer(tokenizer).pair("hello", "there") is None
