"""Bad words are kept out wherever they may stand.

Oracle: transformers' `NoBadWordsLogitsProcessor` on the tokens of whole texts.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import NoBadWordsLogitsProcessor, PreTrainedTokenizerFast

from corellm.frontend.bad_words import word_sequences
from tests.frontend.test_detokenizer import decode, encode, tokenizer_of

PIECES = ["<unk>", "▁", "▁red", "red", "▁blue", "bl", "ue", "s", "(", "▁(", "1", *"abcdelru"]


def sentencepiece(*, prepend: str, newline: bool) -> PreTrainedTokenizerFast:
    """A vocabulary with `red` and ` red`; one without newlines reads them as spaces."""
    pieces = [*PIECES, "\n"] if newline else PIECES
    tokenizer = Tokenizer(models.Unigram([(piece, -float(len(pieces) - i) / 9) for i, piece in enumerate(pieces)], 0))
    spaces: list[Any] = [normalizers.Prepend(prepend)] if prepend else []
    spaces += [] if newline else [normalizers.Replace("\n", " ")]
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), *strip])
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


TOKENIZERS = {
    "prepends a space": lambda: sentencepiece(prepend="▁", newline=True),
    "newlines are spaces": lambda: sentencepiece(prepend="▁", newline=False),
    "prepends nothing": lambda: sentencepiece(prepend="", newline=True),
    "byte_level": lambda: tokenizer_of("byte_level"),
    "byte_fallback": lambda: tokenizer_of("byte_fallback"),
}


def sequences_of(tokenizer: Any, word: str) -> list[list[int]]:
    found = word_sequences(word, lambda text: encode(tokenizer, text), lambda ids: decode(tokenizer, ids))
    return [list(ids) for ids in dict.fromkeys(found)]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("word", ["red", " red", "blues"])
@pytest.mark.parametrize("text", ["{}", "a {}", "a\n{}", "({}"])
def test_a_word_is_kept_out_wherever_it_stands(name: str, word: str, text: str) -> None:
    """Its last token is forbidden by transformers' processor, given our sequences, where the text would complete it."""
    tokenizer = TOKENIZERS[name]()
    whole = encode(tokenizer, text.format(word.lstrip()))
    processor = NoBadWordsLogitsProcessor(sequences_of(tokenizer, word))
    scores = processor(torch.tensor([[0, *whole[:-1]]]), torch.zeros(1, len(tokenizer)))
    assert scores[0, whole[-1]] == -torch.inf


@pytest.mark.parametrize("name", TOKENIZERS)
def test_nothing_else_is_kept_out(name: str) -> None:
    """Every sequence says the word, with a space before it or without."""
    tokenizer = TOKENIZERS[name]()
    for ids in sequences_of(tokenizer, "red"):
        assert decode(tokenizer, ids).strip() == "red"
