"""`LLM.transcribe`: tokens and times of audio of any length are those of transformers' `generate`; pieces join."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import InvalidParameterError, ProcessorKwargsError, PromptError, UnsupportedModalityError
from corellm_llava.tiny import make_tiny_checkpoint as make_llava
from corellm_qwen_audio.tiny import make_tiny_checkpoint as make_qwen_audio
from corellm_speech import Transcript, calls
from corellm_transformers.tiny import make_tiny_checkpoint
from corellm_transformers.tiny.encoder_decoders import ENCODER_DECODERS
from extensions.speech.tests.sounds import RATE, TOKENS, Oracle, chirps
from plugins.transformers.tests.test_encoder_decoders import generated, whisper

LENGTHS = (0.7, 2.0, 2.01, 3.3, 6.123)
"""Seconds; a window has two."""
PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that hears which language is spoken."""
    return whisper(tmp_path_factory.mktemp("whisper"), language=None)


def found_by(llm: LLM, samples: Any, **asked: Any) -> Transcript:
    """The transcript of one item."""
    (found,) = llm.transcribe((samples, RATE), sampling_params=PARAMS, **asked)
    return found


def test_audio_of_any_length_is_read_as_by_generate(llm: LLM, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some side by side: the same segments, tokens, times and text, of short audio and long."""
    monkeypatch.setattr(calls, "_SIDE_BY_SIDE", 3)
    sounds = [chirps(seconds, seed) for seed, seconds in enumerate(LENGTHS)]
    ours = llm.transcribe([(sound, RATE) for sound in sounds], sampling_params=PARAMS)
    zero = llm.engine.input_processor.speech_form.times.zero
    for found, sound in zip(ours, sounds, strict=True):
        wanted = oracle(sound)
        assert [one.token_ids for one in found.segments] == wanted.token_ids
        assert [(one.start, one.end) for one in found.segments] == wanted.times
        assert found.seconds == len(sound) / RATE
        assert found.language in ("english", "german")
        text = [token for token in found.token_ids if token < zero]
        assert found.text == llm.engine.context.tokenizer.decode(text, skip_special_tokens=True)
    assert len({found.text for found in ours}) == len(ours)
    assert max(len(found.segments) for found in ours) > 5


def test_windows_of_thirty_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As published checkpoints have them: shorter audio, and audio of two windows."""
    kind = ENCODER_DECODERS["WhisperForConditionalGeneration"]
    times = tuple(f"<|{step / 50:.2f}|>" for step in range(1501))
    names = (*kind.last_tokens[:-101], *times)
    sizes = {"max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 80}
    published = replace(
        kind, config=sizes, audio={"feature_size": 80, "chunk_length": 30}, more_tokens=names, last_tokens=names
    )
    monkeypatch.setitem(ENCODER_DECODERS, "WhisperForConditionalGeneration", published)
    make_tiny_checkpoint(tmp_path, architecture="WhisperForConditionalGeneration")
    oracle, sounds = Oracle(tmp_path), [chirps(12.3, 0), chirps(45.37, 4)]
    with LLM(str(tmp_path), dtype="float32") as llm:
        ours = llm.transcribe([(sound, RATE) for sound in sounds], sampling_params=PARAMS)
    for found, sound in zip(ours, sounds, strict=True):
        wanted = oracle(sound)
        assert [one.token_ids for one in found.segments] == wanted.token_ids
        assert [(one.start, one.end) for one in found.segments] == wanted.times
    assert max(one.end for one in ours[1].segments) > 30


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [
        ({"language": "de"}, {"language": "german"}),
        ({"language": "english", "translate": True}, {"language": "en", "task": "translate"}),
        ({"prompt": "one two"}, {}),
    ],
)
def test_what_is_told_is_told_to_every_window(
    llm: LLM, oracle: Oracle, path: Path, asked: dict[str, Any], arguments: dict[str, Any]
) -> None:
    sound = chirps(4.1, 9)
    if "prompt" in asked:
        tokenize = transformers.AutoTokenizer.from_pretrained(path)
        told = tokenize("<|startofprev|> one two", add_special_tokens=False)["input_ids"]
        arguments = {"prompt_ids": torch.tensor(told)}
    found, wanted = found_by(llm, sound, **asked), oracle(sound, **arguments)
    assert [one.token_ids for one in found.segments] == wanted.token_ids
    assert [one.token_ids for one in found.segments] != oracle(sound).token_ids


def test_short_audio_without_times_is_asked_for_as_before(llm: LLM) -> None:
    """The prompt of `generate` without times; audio that is longer is read by times all the same."""
    sound = chirps(1, 3)
    found = found_by(llm, sound, language="de", times=False)
    tokens = llm.engine.input_processor.transcription_prompt("de", translate=False, context="")
    prompt = {"prompt_token_ids": tokens, "multi_modal_data": {"audio": (sound, RATE)}}
    (wanted,) = llm.generate(prompt, PARAMS, use_tqdm=False)
    assert found.token_ids == wanted.outputs[0].token_ids
    assert found.segments == []
    assert found.language == "german"
    heard = found_by(llm, sound, times=False).language
    assert heard == found_by(llm, sound).language
    assert found_by(llm, chirps(3, 3), times=False).segments


def test_the_language_is_heard_before_what_was_said(llm: LLM, path: Path) -> None:
    """As `generate` hears it, in audio without times, too."""
    tokenize, heard = transformers.AutoTokenizer.from_pretrained(path), set()
    told = torch.tensor(tokenize("<|startofprev|> one two", add_special_tokens=False)["input_ids"])
    for seed in range(4):
        sound = chirps(1, seed)
        found, wanted = found_by(llm, sound, prompt="one two", times=False), generated(path, sound, prompt_ids=told)
        assert wanted[: len(found.token_ids)] == found.token_ids[: len(wanted)]
        heard.add(found.language)
    assert None not in heard


@pytest.mark.parametrize(
    "window",
    [[0, 0, 0.0], [9, 10, 0.0], [0, 201, 0.0], [-1, 5, 0.0], ["a"], 3, [0, 101, 0.0], [0, 9, nan], [0, 9, 1e300]],
)
def test_windows_that_there_are_not(llm: LLM, window: Any) -> None:
    """An item's processor argument is checked against its samples."""
    prompt = {
        "prompt_token_ids": [], "multi_modal_data": {"audio": (chirps(1, 0), RATE)},
        "mm_processor_kwargs": {"window": window},
    }  # fmt: skip
    with pytest.raises(ProcessorKwargsError, match="window must be"):
        llm.generate(prompt, use_tqdm=False)


def test_what_is_wrong_is_named(llm: LLM) -> None:
    with pytest.raises(PromptError) as caught:
        found_by(llm, chirps(1, 0), language="xx")
    assert caught.value.param == "language"
    with pytest.raises(PromptError, match=r"<\|1\.00\|>"):
        found_by(llm, chirps(1, 0), prompt="one <|1.00|> two")
    prompt = {"prompt": "", "multi_modal_data": {"audio": (chirps(1, 0), RATE)}}
    rules = {"zero": 9, "without": 8, "end": 7, "most_first": None}
    for wrong in ({}, {**rules, "end": None}, {**rules, "zero": 0}, {**rules, "without": 10**9}, {**rules, "more": 1}):
        params = SamplingParams(logits_processors=[{"name": "speech-times", "arguments": wrong}])
        with pytest.raises(InvalidParameterError, match="speech-times takes"):
            llm.generate(prompt, params, use_tqdm=False)


def test_a_model_without_times_reads_pieces(tmp_path: Path) -> None:
    """Its text is that of the pieces, cut in the pauses; a model that is asked in a conversation says so."""
    make_tiny_checkpoint(tmp_path / "a", architecture="MoonshineForConditionalGeneration")
    with LLM(str(tmp_path / "a"), dtype="float32") as llm:
        assert llm.engine.input_processor.speech_form is None
        (found,) = llm.transcribe((chirps(3, 1), RATE), sampling_params=PARAMS)
        prompt = {"prompt": "", "multi_modal_data": {"audio": (chirps(3, 1), RATE)}}
        (wanted,) = llm.generate(prompt, PARAMS, use_tqdm=False)
        assert found.text == wanted.outputs[0].text
        for asked in ({"word_timestamps": True}, {"temperature": (0.0, 0.5)}, {"condition_on_prev_tokens": True}):
            with pytest.raises(InvalidParameterError, match="tells no times") as caught:
                found_by(llm, chirps(1, 1), **asked)
            assert caught.value.param in asked
    make_qwen_audio(tmp_path / "b", seconds=2)
    with LLM(str(tmp_path / "b"), dtype="float32") as llm, pytest.raises(InvalidParameterError, match=r"LLM\.chat"):
        llm.transcribe((chirps(1, 1), RATE))


def test_a_model_without_audio(tmp_path: Path) -> None:
    make_llava(tmp_path)
    with LLM(str(tmp_path), dtype="float32") as llm, pytest.raises(UnsupportedModalityError, match="no audio"):
        llm.transcribe((chirps(1, 0), RATE))
