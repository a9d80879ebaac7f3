"""Encoder-decoders whose encoder reads one item: outputs are transformers' `generate`'s, whatever that begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, MediaError, PromptError
from corellm.multimodal import dummy_images
from corellm_transformers.processors import read_processor
from corellm_transformers.small_items import small_image
from corellm_transformers.tiny import make_tiny_checkpoint
from corellm_transformers.tiny.encoder_decoders import ENCODER_DECODERS

RATE, TOKENS = 16_000, 8
GERMAN, ENGLISH = ("<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"), "<|en|>"


def sound(seed: int, samples: int = RATE) -> NDArray[np.float32]:
    """A tone that becomes louder, of another pitch for each seed."""
    times = np.arange(samples) / RATE
    tone = np.sin(2 * np.pi * 200 * (1 + 3 * seed) * times) * np.linspace(0.1, 1, samples)
    return tone.astype(np.float32)


def whisper(path: Path, **generation: Any) -> Path:
    """A tiny Whisper, with these settings in its generation configuration."""
    make_tiny_checkpoint(path, architecture="WhisperForConditionalGeneration")
    file = path / "generation_config.json"
    stated = {**json.loads(file.read_text()), **generation}
    file.write_text(json.dumps({name: value for name, value in stated.items() if value is not None}))
    return path


def tokens_of(path: Path, *names: str) -> list[int]:
    """The ids of tokens."""
    known = transformers.AutoTokenizer.from_pretrained(path)
    ids: list[int] = known.convert_tokens_to_ids(list(names))
    return ids


def generated(path: Path, audio: NDArray[np.float32], **arguments: Any) -> list[int]:
    """Transformers' greedy tokens, without those that it begins with."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    extract = transformers.WhisperFeatureExtractor.from_pretrained(path)
    features = extract(audio, sampling_rate=RATE, return_tensors="pt")["input_features"]
    seen: list[list[int]] = []

    def note(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return scores

    # its result is without what looks like times, and of few tokens most do
    model.generate(features, max_new_tokens=TOKENS + 1, logits_processor=[note], **arguments)
    whole = next(tokens for tokens, after in pairwise([*seen, []]) if len(after) < len(tokens))  # not a further piece
    return whole[len(seen[0]) :]


def detected(path: Path, audio: NDArray[np.float32]) -> int:
    """The language that transformers detects."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    extract = transformers.WhisperFeatureExtractor.from_pretrained(path)
    features = extract(audio, sampling_rate=RATE, return_tensors="pt")["input_features"]
    return int(model.detect_language(features)[0])


def answers(path: Path, requests: Sequence[tuple[str, NDArray[np.float32]]], **params: Any) -> list[list[int]]:
    """The engine's greedy tokens for texts with audio."""
    prompts = [{"prompt": text, "multi_modal_data": {"audio": (audio, RATE)}} for text, audio in requests]
    with LLM(str(path), dtype="float32") as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS, **params), use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_it_begins_as_generate_does(tmp_path: Path) -> None:
    """In the checkpoint's language, or with what the text says; tokens that may never come, or not first, do not."""
    path = whisper(tmp_path)
    first = answers(path, [("", sound(0))])[0][0]
    whisper(tmp_path, begin_suppress_tokens=[first, tokens_of(path, "</s>")[0]])
    in_english = "".join(GERMAN).replace("<|de|>", ENGLISH)
    translated = in_english.replace("<|transcribe|>", "<|translate|>")
    texts = ("", in_english, translated, "")
    ours = answers(path, [(text, sound(i // 3)) for i, text in enumerate(texts)])
    assert ours == [
        generated(path, sound(0)),
        generated(path, sound(0), language="english"),
        generated(path, sound(0), language="english", task="translate"),
        generated(path, sound(1)),
    ]
    assert ours[0][0] != first
    assert len({tuple(tokens) for tokens in ours}) == len(ours)


@pytest.mark.parametrize("task", [None, "translate"])
def test_a_language_is_detected_as_generate_does(tmp_path: Path, task: str | None) -> None:
    """The output begins with it, and with what follows it; then it is transformers'."""
    path = whisper(tmp_path)
    begin = tokens_of(path, *(["<|translate|>"] if task else []), "<|notimestamps|>")
    changes = {"language": None, "task": task, "lang_to_id": {f"<|{i}|>": 120 + i for i in range(50)}}
    first = answers(whisper(tmp_path, **changes), [("", sound(0))])[0][1 + len(begin)]
    whisper(tmp_path, **changes, begin_suppress_tokens=[first])
    sounds = [sound(seed) for seed in range(6)]
    for ours, audio in zip(answers(path, [("", audio) for audio in sounds]), sounds, strict=True):
        language, *rest = ours
        assert language == detected(path, audio)
        assert rest[: len(begin)] == begin
        assert rest[len(begin) :] == generated(path, audio)[: TOKENS - 1 - len(begin)]


def test_text_before_a_language_is_refused(tmp_path: Path) -> None:
    path = whisper(tmp_path, language=None)
    with pytest.raises(PromptError, match=r"first writes the language.*startoftranscript"):
        answers(path, [("What was said?", sound(0))])


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        ({"prompt": "What?"}, PromptError, "the model reads one audio"),
        ({"prompt": "", "multi_modal_data": {"audio": (sound(0, 3 * RATE), RATE)}}, MediaError, "3.0 seconds.*reads 2"),
    ],
)
def test_what_its_encoder_does_not_read(
    tmp_path: Path, request_: Mapping[str, Any], error: type[Exception], said: str
) -> None:
    with LLM(str(whisper(tmp_path)), dtype="float32") as llm, pytest.raises(error, match=said):
        llm.generate(dict(request_), use_tqdm=False)


@pytest.mark.parametrize(
    "architecture", ["MoonshineStreamingForConditionalGeneration", "Speech2TextForConditionalGeneration"]
)
def test_prompts_side_by_side_keep_their_positions(tmp_path: Path, architecture: str) -> None:
    """Whose decoder adds positions to states, or counts tokens by their ids: each prompt has its own."""
    path = make_tiny_checkpoint(tmp_path, architecture=architecture)
    model = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()
    processor = read_processor(path)
    sounds = [sound(0), sound(1, 12_000), sound(2, 20_000)]
    ours = answers(path, [("", audio) for audio in sounds], min_tokens=TOKENS)
    for tokens, audio in zip(ours, sounds, strict=True):
        tensors = processor(audio=audio, sampling_rate=RATE, return_tensors="pt")
        theirs = model.generate(**tensors, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)[0].tolist()
        assert tokens == theirs[1:]
    assert len({tuple(tokens) for tokens in ours}) > 1


@pytest.mark.parametrize("backend", [None, "cpu"])
def test_a_decoder_with_biases_of_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str | None
) -> None:
    """Pix2Struct's, for outputs that are longer than its largest distance, of few patches.

    The last image fills all 24, as no square one does.
    """
    kind = ENCODER_DECODERS["Pix2StructForConditionalGeneration"]
    config = deepcopy(dict(kind.config))
    config["text_config"] |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    monkeypatch.setitem(ENCODER_DECODERS, "Pix2StructForConditionalGeneration", replace(kind, config=config))
    path = make_tiny_checkpoint(tmp_path, architecture="Pix2StructForConditionalGeneration")
    model = transformers.Pix2StructForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    processor, patches = read_processor(path), {"max_patches": 24}
    images = [*(small_image(seed) for seed in range(3)), *dummy_images(1, width=96, height=64)]
    prompts = [{"prompt": "", "multi_modal_data": {"image": image}} for image in images]
    params = SamplingParams(temperature=0, max_tokens=30, min_tokens=30)
    with LLM(str(path), dtype="float32", attention_backend=backend, mm_processor_kwargs=patches) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert len(outputs[-1].prompt_token_ids) == 24
    for output, image in zip(outputs, images, strict=True):
        tensors = processor(images=image, **patches, return_tensors="pt")
        theirs = model.generate(**tensors, max_new_tokens=30, min_new_tokens=30, do_sample=False)[0].tolist()
        assert list(output.outputs[0].token_ids) == theirs[1:]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) > 1
    assert len({*outputs[0].outputs[0].token_ids}) > 3


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("T5Gemma2ForConditionalGeneration", "attends to its own tokens and to its encoder's states in one sum"),
        ("SpeechT5ForSpeechToText", "does not let its attention be replaced"),
    ],
)
def test_attention_that_is_not_computed_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    path = make_tiny_checkpoint(tmp_path, architecture=architecture)
    with pytest.raises(CheckpointError, match=reason):
        LLM(str(path), dtype="float32")
