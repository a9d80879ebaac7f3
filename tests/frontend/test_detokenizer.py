"""Detokenization and stop strings: text by pieces is the text of the whole, and no piece is ever taken back.

Oracles: the tokenizers' own `decode` of everything at once, and a search of every prefix of the whole text. The
tokenizers are made here: byte-level BPE, Unigram with byte fallback, Unigram with metaspaces, WordPiece, and two slow
Python ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from corellm.frontend.detokenizer import IncrementalDetokenizer, bytes_of_tokens
from corellm.frontend.stop_strings import StopStringMatcher

CORPUS = ["what shape is in the image? a red circle, a blue square.", "USER: describe it. ASSISTANT: über naïve 0123"]
WORDS = [word for line in CORPUS for word in line.split()]
CHARACTERS = sorted(set("".join(CORPUS).replace(" ", "")))
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, "smile 😀😀 日本語"] * 5, trainer)
    tokenizer.add_tokens(["<|a b|>", "é日"])  # their letters stand for no bytes, or not all do
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


def unigram(extra: Sequence[str], *, byte_fallback: bool) -> Tokenizer:
    pieces = ["<unk>", "</s>", *extra, "▁"]
    vocab = [(piece, 0.0) for piece in pieces] + [("▁" + word, -3.0) for word in dict.fromkeys(WORDS)]
    vocab += [(character, -8.0) for character in CHARACTERS]
    return Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=byte_fallback))


def byte_fallback(*steps: Any, adds_space: bool = True) -> PreTrainedTokenizerFast:
    """As of Llama 2; without the added space as of Gemma. A decoder with further steps is unlike any known one."""
    tokenizer = unigram([*BYTES, "\ufffd"], byte_fallback=True)
    added = [normalizers.Prepend("▁")] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*added, normalizers.Replace(" ", "▁")])
    stripped = [decoders.Strip(" ", 1, 0)] if adds_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *stripped, *steps]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    tokenizer = unigram(["\ufffd", *BYTES[60:80]], byte_fallback=False)  # names of bytes, but ordinary text
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    pieces = ["[UNK]", "[SEP]", *dict.fromkeys(WORDS), *CHARACTERS, *("##" + c for c in CHARACTERS)]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, sep_token="[SEP]", unk_token="[UNK]")


class SlowByteTokenizer(PreTrainedTokenizer):
    """A slow tokenizer over bytes and a few longer pieces, invalid bytes decoded with `errors="replace"`."""

    def __init__(self, **kwargs: Any) -> None:
        longer = ["the ", "é".encode()[:1].decode("latin-1") * 2, "😀".encode()[:3].decode("latin-1")]
        self._pieces = [*map(chr, range(256)), *longer]
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def get_vocab(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self._pieces)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return list(text.encode().decode("latin-1"))

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._pieces.index(token) if token in self._pieces else None

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._pieces[index] if index < len(self._pieces) else None

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return b"".join(
            token.encode() if token in self.added_tokens_encoder else token.encode("latin-1") for token in tokens
        ).decode(errors="replace")


MAKERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_gemma": lambda: byte_fallback(adds_space=False),
    "byte_fallback_unknown": lambda: byte_fallback(decoders.Replace("\x01", "\x01")),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
    "slow_bytes": lambda: SlowByteTokenizer(eos_token="</s>"),
    "slow_byt5": lambda: ByT5Tokenizer(extra_ids=3),
}


@cache
def tokenizer_of(name: str) -> Any:
    return MAKERS[name]()


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def decode(tokenizer: Any, ids: Sequence[int], *, skip: bool = True) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def with_valid_bytes(tokenizer: Any, ids: Sequence[int], *, skip: bool) -> list[int]:
    """The same tokens, invalid UTF-8 in runs of byte-fallback tokens replaced as Python does it, the rest untouched."""
    if not any(tokenizer is tokenizer_of(name) for name in MAKERS if "byte_fallback" in name):
        return list(ids)
    if skip:
        ids = [token for token in ids if token not in tokenizer.all_special_ids]
    result: list[int] = []
    for is_byte, group in groupby(ids, key=lambda token: tokenizer.convert_ids_to_tokens(token) in BYTES):
        run = list(group)
        if is_byte:
            raw = bytes(int(tokenizer.convert_ids_to_tokens(token)[3:5], 16) for token in run)
            valid = raw.decode(errors="replace").encode()
            run = [tokenizer.convert_tokens_to_ids(BYTES[value]) for value in valid]
        result += run
    return result


def streamed(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*map(detokenizer.append, ids), detokenizer.finish()]


PARTS = st.sampled_from([*"ab e.,'\n", "é", "日", "😀", "👩‍🚀", "\ufffd", "the "])
TEXTS = st.lists(PARTS, max_size=8).map("".join)
PROMPTS = st.sampled_from(["", "USER: what shape", "describe ", "über 日", "a 😀"])


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None)
@given(data=st.data(), text=TEXTS)
def test_the_bytes_of_tokens_are_the_text(name: str, data: st.DataObject, text: str) -> None:
    """Each token's own, joined, are what `decode` adds behind other text; special ids and unknown ones have none."""
    tokenizer = tokenizer_of(name)
    spelt = bytes_of_tokens(tokenizer, len(tokenizer) + 3)
    with_text = [token for token, its in enumerate(spelt) if its]
    drawn = data.draw(st.lists(st.sampled_from(with_text), max_size=8))
    before = encode(tokenizer, "describe")
    for ids in (drawn, [token for token in encode(tokenizer, text) if spelt[token]]):
        joined = b"".join(spelt[token] for token in ids).decode(errors="replace")
        whole = with_valid_bytes(tokenizer, [*before, *ids], skip=True)
        assert decode(tokenizer, whole) == decode(tokenizer, before) + joined
    assert not any(spelt[token] for token in [*tokenizer.all_special_ids, *range(len(tokenizer), len(spelt))])
    assert set(b"a .,") <= set(b"".join(spelt))


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None)
@given(data=st.data(), prompt=PROMPTS, skip=st.booleans())
def test_the_pieces_are_the_whole(name: str, data: st.DataObject, prompt: str, skip: bool) -> None:
    """For any tokens (whole texts, texts cut anywhere, random ids and so invalid UTF-8 and special tokens), what is
    given out after a prompt is what `decode` adds to the prompt's text, by single tokens and by several at once.
    """
    tokenizer = tokenizer_of(name)
    some_text = st.builds(lambda text, cut: encode(tokenizer, text)[cut:], TEXTS, st.integers(0, 3))
    some_ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=8)
    ids = [token for part in data.draw(st.lists(some_text | some_ids, max_size=6)) for token in part]
    prompt_ids = encode(tokenizer, prompt)
    whole = with_valid_bytes(tokenizer, [*prompt_ids, *ids], skip=skip)
    if name == "byte_fallback_unknown" and not prompt_ids:
        # At the very start of a text the decoder also strips a space spelt as a byte, which no encoder produces.
        assume(not whole or tokenizer.convert_ids_to_tokens(whole[0]) != "<0x20>")
    before, after = decode(tokenizer, prompt_ids, skip=skip), decode(tokenizer, whole, skip=skip)
    assert before + "".join(streamed(tokenizer, prompt_ids, ids, skip=skip)) == after
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens=skip)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=2)))
    pieces = [detokenizer.extend(ids[i:j]) for i, j in pairwise([0, *cuts, len(ids)])]
    assert before + "".join(pieces) + detokenizer.finish() == after


def test_most_tokens_are_spelt_each_by_itself() -> None:
    """And others are not, so that both ways are tried here."""
    spelt = {name for name in MAKERS if IncrementalDetokenizer(tokenizer_of(name), [])._spelling is not None}
    assert spelt == {"byte_level", "byte_fallback", "byte_fallback_gemma"}


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "slow_bytes"])
@settings(deadline=None)
@given(text=TEXTS.filter(lambda text: "\ufffd" not in text))
@example(text="👩‍🚀日本" * 9)
def test_characters_come_whole_and_at_once(name: str, text: str) -> None:
    """After every token exactly the complete characters have been given out: none late, and never half a one."""
    tokenizer = tokenizer_of(name)
    prompt_ids, ids = encode(tokenizer, "what"), encode(tokenizer, text)
    given_out = ""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
    for count, token in enumerate(ids, start=1):
        given_out += detokenizer.append(token)
        so_far = decode(tokenizer, with_valid_bytes(tokenizer, [*prompt_ids, *ids[:count]], skip=True))
        assert "what" + given_out == so_far.rstrip("\ufffd")
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "slow_bytes"])
def test_half_a_character_comes_out_at_the_end(name: str) -> None:
    """An output that ends within a character ends with one U+FFFD, and keeps the whole characters before it."""
    tokenizer = tokenizer_of(name)
    pieces = streamed(tokenizer, encode(tokenizer, "what"), encode(tokenizer, "日é")[:-1])
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces).endswith("日\ufffd")


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "slow_bytes"])
def test_a_character_begun_by_the_prompt_belongs_to_the_output(name: str) -> None:
    """A prompt of token ids that ends within a character: the character is given out when it is complete."""
    tokenizer = tokenizer_of(name)
    ids = encode(tokenizer, "what é!")
    cut = next(i for i in range(1, len(ids)) if decode(tokenizer, ids[:i]).endswith("\ufffd"))
    assert "".join(streamed(tokenizer, ids[:cut], ids[cut:])) == "é!"


def test_a_newline_as_a_byte_token_is_not_held_back() -> None:
    """Many vocabularies spell a newline `<0x0A>`; as a stop string it must be seen with its own token."""
    tokenizer = tokenizer_of("byte_fallback")
    newline = tokenizer.convert_tokens_to_ids("<0x0A>")
    assert streamed(tokenizer, encode(tokenizer, "a"), [newline, newline]) == ["\n", "\n", ""]


@pytest.mark.parametrize("name", MAKERS)
def test_the_first_word_is_spaced_by_the_prompt(name: str) -> None:
    """Also behind special tokens, which are skipped: a prompt that ends with many of them is looked through."""
    tokenizer = tokenizer_of(name)
    ids = encode(tokenizer, "a red circle")
    prompt, output = ids[:-6], ids[-6:]
    special = [tokenizer.all_special_ids[0]] * 500
    assert decode(tokenizer, prompt) + "".join(streamed(tokenizer, [*prompt, *special], output)) == "a red circle"


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "slow_bytes"])
def test_ids_beyond_the_vocabulary_have_no_text(name: str) -> None:
    """Logits may be wider than the vocabulary."""
    tokenizer = tokenizer_of(name)
    a, b = encode(tokenizer, "a")[-1], encode(tokenizer, "b")[-1]
    beyond = len(tokenizer) + 5
    assert "".join(streamed(tokenizer, [a, beyond], [beyond, b, beyond])) == "b"


def test_spaces_between_special_tokens() -> None:
    """WordPiece puts a space before a special token; between two of them it can be left out, before words it stays."""
    tokenizer = tokenizer_of("wordpiece")
    special = tokenizer.sep_token_id
    ids = [*encode(tokenizer, "the"), special, special, *encode(tokenizer, "the"), special, special, special]
    for spaces in (True, False):
        detokenizer = IncrementalDetokenizer(
            tokenizer, [], skip_special_tokens=False, spaces_between_special_tokens=spaces
        )
        text = "".join(map(detokenizer.append, ids)) + detokenizer.finish()
        whole = decode(tokenizer, ids, skip=False)
        assert "[SEP] [SEP]" in whole
        assert text == (whole if spaces else whole.replace("[SEP] [SEP] [SEP]", "[SEP]" * 3).replace("] [", "]["))


class CountingTokenizer(PreTrainedTokenizerFast):
    """Remembers the longest list of tokens it was asked to decode."""

    longest = 0

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.longest = max(self.longest, len(token_ids))
        return super().decode(token_ids, *args, **kwargs)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("kind", ["text", "special", "emoji", "broken"])
def test_a_token_costs_a_bounded_window(name: str, kind: str) -> None:
    """Whatever comes, and for however long: also special tokens after the end, and bytes that never become text."""
    tokenizer = CountingTokenizer(tokenizer_object=tokenizer_of(name).backend_tokenizer, eos_token="</s>")
    ids = {
        "text": encode(tokenizer, CORPUS[0]),
        "special": [tokenizer.eos_token_id],
        "emoji": encode(tokenizer, "😀"),
        "broken": encode(tokenizer, "😀")[-1:],
    }[kind]
    tokenizer.longest = 0
    streamed(tokenizer, encode(tokenizer, CORPUS[1]) * 50, ids * 200)
    assert tokenizer.longest <= 17


def test_stop_strings_meet_characters_of_many_tokens() -> None:
    """An emoji as stop string, its bytes in tokens of their own, stops the text where it is complete."""
    tokenizer = tokenizer_of("byte_fallback")
    detokenizer = IncrementalDetokenizer(tokenizer, encode(tokenizer, "a"))
    matcher = StopStringMatcher(["e😀"], include=True)
    text = ""
    for token in encode(tokenizer, "blue😀 red"):
        text += matcher.append(detokenizer.append(token))
    assert (text, matcher.matched) == (" blue😀", "e😀")


def test_a_tokenizer_with_ways_of_its_own_is_asked_itself() -> None:
    """The one behind transformers' wrapper is, only where the wrapper adds nothing."""

    class Loud(PreTrainedTokenizerFast):
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return super()._decode(*args, **kwargs).upper()

    usual = tokenizer_of("byte_level")
    loud = Loud(tokenizer_object=usual.backend_tokenizer, eos_token="</s>", pad_token="<pad>")
    ids = encode(usual, "a red circle")
    for tokenizer, wanted in ((usual, "a red circle"), (loud, "A RED CIRCLE")):
        detokenizer = IncrementalDetokenizer(tokenizer, [])
        assert "".join(detokenizer.append(token) for token in ids) == wanted


def test_ids_with_gaps() -> None:
    """Special tokens behind a gap are left out all the same; an id within it has no text, and begins none."""
    words = {"a": 0, "b": 1, "c": 2, "\u0120d": 3, "</s>": 50, "<im>": 60}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>", "<im>"])
    gaps = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    assert "".join(streamed(gaps, [], [1, 60, 2, 50])) == "bc"
    tokenizer.decoder = byte_fallback().backend_tokenizer.decoder
    tokenizer.add_tokens(["\u2581e"])
    stripped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    word = stripped.convert_tokens_to_ids("\u2581e")
    assert "".join(streamed(stripped, [], [4, word, word])) == decode(stripped, [word, word]) == "e e"


def test_a_special_token_that_is_added_later() -> None:
    """Known facts about a tokenizer are those of its present tokens."""
    tokenizer = byte_level()
    ids = encode(tokenizer, "a red")
    assert "".join(streamed(tokenizer, [], ids)) == "a red"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    assert "".join(streamed(tokenizer, [], [*ids, tokenizer.convert_tokens_to_ids("<new>")])) == "a red"


@pytest.mark.parametrize("name", ["<0x0A>", "<0x0a>"])
def test_a_vocabulary_with_few_bytes(name: str) -> None:
    """One name of a byte is enough for the decoder, in small letters, too."""
    tokenizer = unigram([name], byte_fallback=False)
    tokenizer.decoder = byte_fallback(adds_space=False).backend_tokenizer.decoder
    few = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    ids = few.convert_tokens_to_ids([name, "\u2581red"])
    assert "".join(streamed(few, [], ids)) == decode(few, ids) == "\n red"


def test_a_decoder_in_python() -> None:
    """It states nothing of itself, so tokens are decoded together."""

    class Loud:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [token.replace("\u0120", " ").upper() for token in tokens]

    tokenizer = byte_level()
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(Loud())
    assert "".join(streamed(tokenizer, [], encode(tokenizer, "a red circle"))) == "A RED CIRCLE"


@pytest.mark.parametrize("name", MAKERS)
def test_no_tokens_at_once(name: str) -> None:
    tokenizer = tokenizer_of(name)
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    assert detokenizer.extend([]) == detokenizer.extend(tokenizer.all_special_ids[:1]) == ""
    assert detokenizer.is_at_start
