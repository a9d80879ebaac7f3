"""The tokens of log-probabilities have the text they have in the output. Oracle: the tokenizers' own `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from corellm.frontend.detokenizer import IncrementalDetokenizer
from corellm.frontend.logprobs_decoder import LogprobsDecoder
from corellm.scheduling.batch import TokenLogprobs
from tests.frontend.test_detokenizer import MAKERS, decode, encode, tokenizer_of

TEXTS = ["what shape is in the image? a red circle", "über 😀😀 日本語 naïve\n\nthe end", " describe  it"]


def decoded(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], also: Sequence[int]) -> list[list[str | None]]:
    """For every position the texts of its token and of the tokens in `also`."""
    decoder, detokenizer = LogprobsDecoder(tokenizer), IncrementalDetokenizer(tokenizer, prompt)
    found: list[list[str | None]] = []
    for token in ids:
        asked = [token, *also]
        numbers: list[Any] = [0.0] * len(asked)
        position = decoder.decode_position(TokenLogprobs(asked, numbers, [1] * len(asked)), detokenizer)
        found.append([position[t].decoded_token for t in asked])
        detokenizer.append(token)
    return found


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("prompt", ["", "USER: what shape"])
@pytest.mark.parametrize("text", TEXTS)
def test_joined_they_are_the_text(name: str, prompt: str, text: str) -> None:
    """With its spaces and characters of several tokens, in every kind of vocabulary."""
    tokenizer = tokenizer_of(name)
    before, ids = encode(tokenizer, prompt), encode(tokenizer, text)
    whole, known = decode(tokenizer, [*before, *ids]), decode(tokenizer, before)
    special = set(tokenizer.all_special_ids)  # words that the vocabulary does not know
    found = decoded(tokenizer, before, ids, [])
    own = [texts[0] or "" for token, texts in zip(ids, found, strict=True) if token not in special]
    assert known + "".join(own) == whole


@pytest.mark.parametrize("name", MAKERS)
def test_alternatives_have_the_text_they_would_have(name: str) -> None:
    """At every position and for every token, also at the start of a text and within a character."""
    tokenizer = tokenizer_of(name)
    ids = encode(tokenizer, "the über 日")
    named = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    special = named.union(tokenizer.all_special_ids)
    others = [token for token in range(len(tokenizer)) if token not in special][::7]
    for at, (_, *texts) in enumerate(decoded(tokenizer, [], ids, others)):
        before = decode(tokenizer, ids[:at])
        for token, text in zip(others, texts, strict=True):
            whole = decode(tokenizer, [*ids[:at], token])
            if "\ufffd" not in whole:
                assert before.rstrip("\ufffd") + (text or "") == whole, (at, token)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "slow_bytes"])
def test_a_character_belongs_to_the_token_that_completes_it(name: str) -> None:
    """The tokens before have no text."""
    tokenizer = tokenizer_of(name)
    ids = encode(tokenizer, "a 語")
    own = [texts[0] for texts in decoded(tokenizer, [], ids, [])]
    assert own[-1] == "語"
    assert own[-2] == ""
    assert "\ufffd" not in "".join(text or "" for text in own)


def test_special_tokens_have_their_own_text() -> None:
    """Also where the output leaves them out."""
    tokenizer = tokenizer_of("byte_fallback")
    stop = tokenizer.eos_token_id
    assert decoded(tokenizer, encode(tokenizer, "what"), [stop, stop], [stop]) == [["</s>", "</s>"]] * 2


def test_prompts_are_read_in_chunks() -> None:
    """The texts of a prompt's tokens, found in two parts, joined are the prompt."""
    tokenizer = tokenizer_of("byte_fallback")
    ids = encode(tokenizer, "what shape 日本 is in")
    numbers = [TokenLogprobs([token], [0.0], [1]) for token in ids]
    for cut in range(1, len(ids)):
        texts = LogprobsDecoder(tokenizer)
        found = texts.decode_prompt(numbers[1:cut], ids[:1]) + texts.decode_prompt(numbers[cut:], ids[:cut])
        joined = "".join(position[t].decoded_token or "" for position, t in zip(found, ids[1:], strict=True))
        assert decode(tokenizer, ids[:1]) + joined == decode(tokenizer, ids)
