"""Which texts are tried again, which windows are silent, and what the next one is told: as `generate` has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import InvalidParameterError
from corellm_speech.retries import Retries
from corellm_transformers.tiny.encoder_decoders import ENCODER_DECODERS
from extensions.speech.tests.sounds import RATE, TOKENS, Oracle, chirps
from plugins.transformers.tests.test_encoder_decoders import whisper

PARAMS = SamplingParams(temperature=0, max_tokens=TOKENS)
SOUND = chirps(4.1, 4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper whose prompts have room for few earlier tokens, so that some are left out."""
    kind = ENCODER_DECODERS["WhisperForConditionalGeneration"]
    with pytest.MonkeyPatch.context() as patch:
        sizes = {**kind.config, "max_target_positions": 64}
        patch.setitem(ENCODER_DECODERS, "WhisperForConditionalGeneration", replace(kind, config=sizes))
        return whisper(tmp_path_factory.mktemp("whisper"), language=None)


def found_by(llm: LLM, **asked: Any) -> Any:
    """The transcript of the sound."""
    (found,) = llm.transcribe((SOUND, RATE), sampling_params=PARAMS, **asked)
    return found


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Whether each try was tried again, and its window silent."""
    seen: list[tuple[bool, bool]] = []
    judge = Retries.judge

    def noted(self: Retries, *given: Any) -> tuple[bool, bool]:
        seen.append(judge(self, *given))
        return seen[-1]

    monkeypatch.setattr(Retries, "judge", noted)
    return seen


def test_windows_are_judged_as_by_generate(llm: LLM, oracle: Oracle, judged: list[tuple[bool, bool]]) -> None:
    """By each threshold: some texts are tried again and some windows left out, the same ones."""
    plain = found_by(llm, logprob_threshold=-1e9)
    likely = sorted({one.mean_logprob for one in plain.segments})
    silent = sorted({one.no_speech_prob for one in plain.segments})
    assert len(likely) > 2
    middle = (likely[0] + likely[-1]) / 2
    for thresholds in (
        {"logprob_threshold": middle},
        {"logprob_threshold": likely[-1] + 1e-3, "no_speech_threshold": (silent[0] + silent[-1]) / 2},
        {"logprob_threshold": middle, "no_speech_threshold": 0.0, "compression_ratio_threshold": 0.95},
    ):
        judged.clear()
        asked = {"temperature": (0.0, 0.0), **thresholds}
        found, wanted = found_by(llm, **asked), oracle(SOUND, **asked)
        assert judged == wanted.judged, thresholds
        assert len(set(judged)) > 1, thresholds
        assert [one.token_ids for one in found.segments] == wanted.token_ids
        assert [(one.start, one.end) for one in found.segments] == wanted.times


@pytest.mark.parametrize("prompt", ["", "one two"])
def test_a_window_is_told_of_those_before(path: Path, llm: LLM, oracle: Oracle, prompt: str) -> None:
    """The latest tokens that fit, behind what was said before the audio."""
    arguments: dict[str, Any] = {"condition_on_prev_tokens": True}
    if prompt:
        tokenize = transformers.AutoTokenizer.from_pretrained(path)
        told = tokenize(f"<|startofprev|> {prompt}", add_special_tokens=False)["input_ids"]
        arguments["prompt_ids"] = torch.tensor(told)
    found, wanted = found_by(llm, condition_on_prev_tokens=True, prompt=prompt), oracle(SOUND, **arguments)
    assert [one.token_ids for one in found.segments] == wanted.token_ids
    assert found.text != found_by(llm, prompt=prompt).text


def test_temperatures_are_tried_one_after_another(llm: LLM) -> None:
    """Up to the last one, where none gives a text that is good enough; high ones are told to no window."""
    asked = {"temperature": (0.0, 0.7, 1.0), "logprob_threshold": 0.0}
    ((found,), (good,)) = (
        llm.transcribe((chirps(1.5, 4), RATE), sampling_params=PARAMS, **one)
        for one in ({**asked, "condition_on_prev_tokens": True}, {**asked, "logprob_threshold": -1e9})
    )
    assert {one.temperature for one in found.segments} == {1.0}
    assert {one.temperature for one in good.segments} == {0.0}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"no_speech_threshold": 0.5}, "no_speech_threshold"),
        ({"temperature": ()}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": (0.0, -1.0)}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": (0.0, 10**5000)}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"logprob_threshold": -(10**400)}, "logprob_threshold"),
        ({"logprob_threshold": float("nan")}, "logprob_threshold"),
        ({"compression_ratio_threshold": "2"}, "compression_ratio_threshold"),
    ],
)
def test_what_is_wrong_is_named(llm: LLM, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        found_by(llm, **asked)
    assert caught.value.param == param
