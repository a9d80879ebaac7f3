"""Times of tokens and words: those of transformers' `generate` and of its Whisper tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.whisper.generation_whisper import _dynamic_time_warping
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from corellm import LLM, SamplingParams
from corellm.errors import InvalidParameterError
from corellm_speech.words import first_steps, grouped
from extensions.speech.tests.sounds import RATE, TOKENS, Oracle, chirps
from plugins.transformers.tests.test_encoder_decoders import whisper

LENGTHS = (0.7, 2.0, 3.3, 6.123)
"""Seconds; a window has two."""
PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that says by which heads words are found."""
    return whisper(tmp_path_factory.mktemp("whisper"), language=None, alignment_heads=[[1, 3], [0, 1], [1, 0]])


def test_tokens_are_heard_when_generate_says(path: Path, llm: LLM) -> None:
    """Of short audio and long, some side by side; words are those of the tokenizer."""
    oracle, sounds = Oracle(path), [chirps(seconds, seed) for seed, seconds in enumerate(LENGTHS)]
    plain = llm.transcribe([(sound, RATE) for sound in sounds], sampling_params=PARAMS)
    ours = llm.transcribe([(sound, RATE) for sound in sounds], sampling_params=PARAMS, word_timestamps=True)
    for found, without, sound in zip(ours, plain, sounds, strict=True):
        wanted = oracle(sound, return_token_timestamps=True)
        assert [one.token_ids for one in found.segments] == wanted.token_ids
        assert found.text == without.text
        assert not without.words
        for one, times in zip(found.segments, wanted.token_times, strict=True):
            if one.window < found.seconds:  # of a window behind the audio's end, `generate` counts backwards
                assert one.token_times == times
        assert "".join(word.text for word in found.words).strip() == found.text.strip()
        assert all(word.start <= word.end for word in found.words)
    assert len({time for one in ours[-1].segments for time in one.token_times}) > 10


def test_a_checkpoint_that_names_no_heads(tmp_path: Path, llm: LLM, path: Path) -> None:
    """It is refused by name, and so are heads that its decoder has not."""
    for number, heads in enumerate((None, [[0, 99]], "all")):
        whisper(tmp_path / str(number), language=None, alignment_heads=heads)
        with (
            LLM(str(tmp_path / str(number)), dtype="float32") as other,
            pytest.raises(InvalidParameterError, match="alignment_heads") as caught,
        ):
            other.transcribe((chirps(1, 0), RATE), word_timestamps=True)
        assert caught.value.param == "word_timestamps"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 10**6), st.booleans())
def test_the_path_is_that_of_transformers(num_tokens: int, num_steps: int, seed: int, ties: bool) -> None:
    """With ties, too."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(num_tokens, num_steps))
    rows = (np.round(rows) if ties else rows).astype(np.float32)
    tokens, steps = _dynamic_time_warping(-rows.astype(np.float64))
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    assert first_steps(rows) == steps[jumps].tolist()


def test_no_path() -> None:
    """Where no token is told from others, all are heard at the beginning."""
    assert first_steps(np.full((3, 5), np.nan, np.float32)) == [0, 0, 0]
    assert first_steps(np.zeros((3, 0), np.float32)) == [0, 0, 0]
    assert first_steps(np.zeros((0, 5), np.float32)) == []


@pytest.mark.parametrize("language", ["english", "japanese", None])
@pytest.mark.parametrize(
    "text",
    [
        ' He said: "Ça va?" (oui) - well... it\'s 3,5 %.',
        " 日本語です。はい、そうです！",
        "no space “here” ¿qué? [x]{y}",
        " \ufffd odd",
        "",
    ],
)
def test_words_are_those_of_transformers(text: str, language: str | None) -> None:
    """Of characters of several tokens, too; punctuation is beside its word."""
    alphabet = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    theirs: Any = SimpleNamespace(
        decode=lambda tokens, **_: tokenizer.decode(tokens), eos_token_id=len(alphabet), language=None
    )
    tokens = tokenizer(text)["input_ids"]
    words, _, places = _combine_tokens_into_words(theirs, tokens, language)
    assert grouped(tokens, tokenizer, language) == list(zip(words, places, strict=True))
    cut = tokens[:-1]  # inside a character
    words, _, places = _combine_tokens_into_words(theirs, cut, language)
    assert grouped(cut, tokenizer, language) == list(zip(words, places, strict=True))
