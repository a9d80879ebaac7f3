"""What an encoder-decoder is told of audio: its outputs are those of `generate` with the same arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import PromptError
from corellm_transformers.tiny import make_tiny_checkpoint
from plugins.transformers.tests.test_encoder_decoders import (
    RATE,
    TOKENS,
    detected,
    generated,
    sound,
    tokens_of,
    whisper,
)

TOLD: list[tuple[str | None, bool, str]] = [
    ("german", False, ""), ("en", False, ""), (None, True, ""), ("en", True, "one two three"),
    (None, False, "one two three"),
]  # fmt: skip


def spoken(llm: LLM, language: str | None, translate: bool, context: str) -> list[int]:
    """The engine's greedy tokens for the prompt of a transcription."""
    tokens = llm.engine.input_processor.transcription_prompt(language, translate=translate, context=context)
    assert tokens is not None
    prompt = {"prompt_token_ids": tokens, "multi_modal_data": {"audio": (sound(1), RATE)}}
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=TOKENS), use_tqdm=False)
    return list(output.outputs[0].token_ids)


def arguments(path: Path, language: str | None, translate: bool, context: str) -> dict[str, Any]:
    """The same, as `generate` takes it."""
    given: dict[str, Any] = {"language": language} if language else {}
    if translate:
        given["task"] = "translate"
    if context:
        tokenize = transformers.AutoTokenizer.from_pretrained(path)
        before = tokenize(f"<|startofprev|> {context}", add_special_tokens=False)
        given["prompt_ids"] = torch.tensor(before["input_ids"])
    return given


@pytest.mark.parametrize("stated", ["german", None])
def test_it_is_told_as_generate_is(tmp_path: Path, stated: str | None) -> None:
    """Where the checkpoint states a language, and where the model hears which it is."""
    path = whisper(tmp_path, language=stated)
    languages = tokens_of(path, "<|en|>", "<|de|>")
    found = []
    with LLM(str(path), dtype="float32") as llm:
        for language, translate, context in TOLD:
            ours = spoken(llm, language, translate, context)
            if stated is None and language is None:
                assert ours[0] == detected(path, sound(1))
                assert set(ours[1:3]) & set(tokens_of(path, "<|notimestamps|>"))
                ours = ours[1 + ours[:3].index(tokens_of(path, "<|notimestamps|>")[0]) :]
            assert ours == generated(path, sound(1), **arguments(path, language, translate, context))[: len(ours)]
            assert not set(ours) & set(languages)
            found.append(tuple(ours))
        assert llm.engine.input_processor.transcription_prompt(None, translate=False, context="") is None
    assert len(set(found)) > 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny Whisper."""
    with LLM(str(whisper(tmp_path_factory.mktemp("whisper"))), dtype="float32") as llm:
        yield llm


@pytest.mark.parametrize(
    ("language", "context", "param"),
    [("xx", "", "language"), ("<|de|>x", "", "language"), ("fr", "", "language"), (None, "one <|de|> two", "prompt")],
)
def test_what_it_cannot_be_told(loaded: LLM, language: str | None, context: str, param: str) -> None:
    """A language that it does not know, or text that is none; the field is named."""
    with pytest.raises(PromptError) as caught:
        loaded.engine.input_processor.transcription_prompt(language, translate=False, context=context)
    assert caught.value.param == param


def test_a_checkpoint_that_does_not_say_how_to_begin_what_was_said_before(tmp_path: Path) -> None:
    """It is told a language all the same; the error names the field and the entry that is missing."""
    path = whisper(tmp_path, prev_sot_token_id=None)
    with LLM(str(path), dtype="float32") as llm:
        ask = llm.engine.input_processor.transcription_prompt
        assert ask("de", translate=False, context="") is not None
        with pytest.raises(PromptError, match="prev_sot_token_id") as caught:
            ask("de", translate=False, context="a lamp")
    assert caught.value.param == "prompt"


def test_a_model_without_languages_is_told_nothing(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, architecture="MoonshineForConditionalGeneration")
    with LLM(str(tmp_path), dtype="float32") as llm:
        ask = llm.engine.input_processor.transcription_prompt
        assert ask(None, translate=False, context="") is None
        for language, translate, context in TOLD:
            with pytest.raises(PromptError, match="cannot be told"):
                ask(language, translate=translate, context=context)
