"""Texts refused by their characters: none that could fit, whatever the tokenizer does to text; and those at once.

The oracle is the tokenizer itself: no text has more characters than its tokens hold by the limit's account.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from corellm import AsyncLLM
from corellm.errors import PromptTooLongError
from corellm.frontend import text_limit
from corellm.frontend.text_limit import TextLimit

CORPUS = [
    "the quick brown fox",
    "        indented = code",
    "==========",
    "naïve café e\u0301te\u0301",
    "日本語 text",
] * 9


def byte_level(normalizer: Any = None, *, lstrip: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([AddedToken("<image>", lstrip=lstrip), AddedToken("<|a long special token|>")])
    return tokenizer


def byte_fallback(*normalizing: Any) -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "▁▁▁▁", "▁the", "e", "brown", "=" * 8]
    tokenizer = Tokenizer(models.Unigram([(p, -float(len(p))) for p in pieces], unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([*normalizing, normalizers.Replace(" ", "▁")])
    return tokenizer


def unknown_words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def dropping() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("x", "removed"), tokenizer.pre_tokenizer])
    return tokenizer


LIMITED = {
    "bytes": byte_level,
    "bytes, composed": lambda: byte_level(normalizers.NFC()),
    "bytes, collapsed": lambda: byte_level(normalizers.Sequence([normalizers.Replace(Regex(" {2,}"), " ")])),
    "bytes, stripped": lambda: byte_level(normalizers.Strip()),
    "bytes, space before a token lost": lambda: byte_level(lstrip=True),
    "fallback": lambda: byte_fallback(normalizers.Prepend("▁")),
    "fallback, composed": lambda: byte_fallback(normalizers.NFKC()),
}


@pytest.mark.parametrize("name", LIMITED)
def test_no_text_that_fits_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random and extreme texts, each against a model that takes exactly its tokens, and without any slack."""
    monkeypatch.setattr(text_limit, "CHEAP_CHARACTERS", 0)
    monkeypatch.setattr(text_limit, "_SLACK", 1)
    tokenizer, rng = LIMITED[name](), Random(0)
    words = [
        "the",
        " ",
        "    ",
        "\n\t",
        "=" * 8,
        "e\u0301",
        "ΐ",
        "ᾂ",
        "日本",
        "<image>",
        "<|a long special token|>",
        "😀",
        "x",
    ]
    for word in (*words, None, None, None):
        text = "".join(rng.choices([word] if word else words, k=1000)) + "<image>"
        TextLimit(tokenizer, len(tokenizer.encode(text).ids)).check(text)


@pytest.mark.parametrize("name", LIMITED)
def test_texts_that_can_never_fit_are_refused(name: str) -> None:
    """With both numbers, without a look at the tokens."""
    limit = TextLimit(LIMITED[name](), 1000)
    with pytest.raises(PromptTooLongError, match=r"1000000 characters.* max_model_len=1000"):
        limit.check("x" * 1_000_000)
    limit.check("x" * 10_000)


@pytest.mark.parametrize("make", [unknown_words, dropping, lambda: None])
def test_where_text_may_be_lost_there_is_no_limit(make: Any) -> None:
    """A million characters can be one unknown token, or none: such a prompt is tokenized."""
    tokenizer = make()
    TextLimit(tokenizer, 100).check("x" * 1_000_000)
    assert tokenizer is None or len(tokenizer.encode("x" * 1_000_000).ids) <= 1


def test_a_long_prompt_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As text, as tokens and in a conversation: nothing of it is tokenized, or looked at token by token."""
    llm = AsyncLLM("demo", num_kv_blocks=64)
    processor = llm.engine.input_processor

    tokenize = processor.text_tokenizer

    def tokenize_short(text: str, **kwargs: Any) -> list[int]:
        assert len(text) < 1000, "tokenized"  # placeholders are, to be told from text
        return tokenize(text, **kwargs)

    def never(*args: Any) -> Any:
        raise AssertionError("looked at token by token")

    async def first(outputs: Any) -> Any:
        async for output in outputs:
            return output
        return None

    monkeypatch.setattr(processor, "text_tokenizer", tokenize_short)
    monkeypatch.setattr(processor, "_check_token", never)
    text = "word " * 1_000_000
    try:
        for asked in (text, {"prompt": text}, {"prompt_token_ids": [5] * 1_000_000}):
            with pytest.raises(PromptTooLongError, match="max_model_len=512"):
                asyncio.run(first(llm.generate(asked)))
        with pytest.raises(PromptTooLongError, match="max_model_len=512"):
            asyncio.run(first(llm.chat([{"role": "user", "content": text}])))
    finally:
        llm.close()
