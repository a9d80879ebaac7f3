"""What is Qwen2-Audio's own: lengths of audio, markers in prompts and conversations, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import (
    MediaError,
    MediaTooLargeError,
    MissingPlaceholderError,
    ProcessorKwargsError,
    SurplusPlaceholderError,
)
from corellm_qwen_audio.tiny import make_tiny_checkpoint

RATE = 16_000
SECONDS = 4
LONGEST = SECONDS * RATE
PLACEHOLDER = "<|audio_bos|><|AUDIO|><|audio_eos|>"
GREEDY = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny Qwen2-Audio of 4 seconds, loaded."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen_audio"), seconds=SECONDS)
    with LLM(str(path), dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def processor(llm: LLM) -> Any:
    """The Hugging Face processor of the same checkpoint: the oracle."""
    return transformers.AutoProcessor.from_pretrained(llm.engine.context.model_path)


def make_audio(num_samples: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.1).astype(np.float32)


def process(llm: LLM, prompt: Any, items: Any, **kwargs: Any) -> Any:
    """Our processing of one request; `prompt` is text or token ids."""
    key = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
    return llm.engine.input_processor.process(
        {key: prompt, "multi_modal_data": {"audio": items}, "mm_processor_kwargs": kwargs}
    )


# --- against the Hugging Face processor -------------------------------------------------------------------------------


def test_placeholders_without_the_familys_markers(llm: LLM, processor: Any) -> None:
    """The audio token alone takes an item, too."""
    text, items = "What?<|AUDIO|> and<|AUDIO|>", [make_audio(5000), make_audio(321)]
    want = processor(text=text, audio=items, sampling_rate=RATE, return_tensors="pt")
    assert process(llm, text, items).token_ids == want["input_ids"][0].tolist()


@pytest.mark.parametrize("num_samples", [321, 640, 641, 960, 961, RATE, LONGEST - 1, LONGEST])
def test_the_encoder_gives_an_embedding_per_token(llm: LLM, processor: Any, num_samples: int) -> None:
    """At the borders of frames, of positions and of the whole."""
    text = f"{PLACEHOLDER}what?"
    want = processor(text=text, audio=[make_audio(num_samples)], sampling_rate=RATE, return_tensors="pt")["input_ids"]
    output = llm.generate(
        {"prompt": text, "multi_modal_data": {"audio": make_audio(num_samples)}}, GREEDY, use_tqdm=False
    )
    assert output[0].prompt_token_ids == want[0].tolist()
    assert output[0].finished


def test_dummy_is_the_worst_case(llm: LLM) -> None:
    """25 embeddings per second, and no audio takes more."""
    assert llm.engine.input_processor.mm_processor.profile.max_tokens == {"audio": 25 * SECONDS}


# --- what users send --------------------------------------------------------------------------------------------------


def test_chat(llm: LLM, processor: Any) -> None:
    """Items are numbered through all turns, by the checkpoint's template and by one that takes text only."""
    first, second = make_audio(5000, 1), make_audio(9000, 2)
    messages = [
        {"role": "user", "content": [{"type": "audio", "audio": first}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "Glass."},
        {"role": "user", "content": [{"type": "audio", "audio": (second, RATE)}, {"type": "text", "text": "And it?"}]},
    ]
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\nAudio 1: {PLACEHOLDER}\nWhat is it?<|im_end|>\n"
        "<|im_start|>assistant\nGlass.<|im_end|>\n"
        f"<|im_start|>user\nAudio 2: {PLACEHOLDER}\nAnd it?<|im_end|>\n<|im_start|>assistant\n"
    )
    want = processor(text=text, audio=[first, second], sampling_rate=RATE, return_tensors="pt")["input_ids"]
    assert llm.chat(messages, GREEDY, use_tqdm=False)[0].prompt_token_ids == want[0].tolist()
    text_only = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    text = f"Audio 1: {PLACEHOLDER}\nWhat is it?Glass.Audio 2: {PLACEHOLDER}\nAnd it?"
    want = processor(text=text, audio=[first, second], sampling_rate=RATE, return_tensors="pt")["input_ids"]
    output = llm.chat(messages, GREEDY, chat_template=text_only, use_tqdm=False)[0]
    assert output.prompt_token_ids == want[0].tolist()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "error", "words"),
    [
        (
            make_audio(LONGEST + 1),
            MediaTooLargeError,
            r"64001 samples .*64000 ",
        ),
        (make_audio(320), MediaError, r"320 samples .*more than 320"),
        (make_audio(0), MediaError, "audio 0: .*empty"),
        (b"RIFF", MediaError, "audio 0: the data is not WAV, FLAC, Ogg, MP3"),
        ([], SurplusPlaceholderError, r"<\|AUDIO\|>"),
        ([make_audio(999)] * 2, MissingPlaceholderError, "1"),
    ],
)
def test_bad_audio_is_refused(llm: LLM, items: Any, error: type[Exception], words: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(error, match=words) as caught:
        process(llm, PLACEHOLDER, items)
    assert "\n" not in str(caught.value)


def test_truncation_is_opt_in(llm: LLM, processor: Any) -> None:
    """With it, the Hugging Face processor's tensors."""
    long = make_audio(LONGEST + 5000)
    want = processor(text=PLACEHOLDER, audio=[long], sampling_rate=RATE, return_tensors="pt")
    got = process(llm, PLACEHOLDER, long, truncation=True)
    assert got.token_ids == want["input_ids"][0].tolist()
    assert torch.equal(got.features[0].data["input_features"].data, want["input_features"][0])
    with pytest.raises(MediaTooLargeError, match=r"mm_processor_kwargs={.truncation.: True}"):
        process(llm, PLACEHOLDER, long, truncation=False)


@pytest.mark.parametrize("kwargs", [{"padding": "longest"}, {"sampling_rate": 8000}, {"truncation": "yes"}])
def test_other_arguments_are_refused(llm: LLM, kwargs: dict[str, Any]) -> None:
    """Arguments that the encoder cannot take, and unknown ones."""
    with pytest.raises(ProcessorKwargsError, match="'truncation'"):
        process(llm, PLACEHOLDER, make_audio(RATE), **kwargs)


# --- the plugin -------------------------------------------------------------------------------------------------------


def test_dummies_are_as_long_as_the_operator_plans(llm: LLM) -> None:
    """The length of `limit_mm_per_prompt`, in samples; without it, the longest audio."""
    make = llm.engine.input_processor.mm_processor.hooks.get_dummy_mm_data
    lengths = [
        len(make(seq_len=512, mm_counts={"audio": 1}, mm_options=options)["audio"][0])
        for options in ({}, {"audio": {"length": 4000}})
    ]
    assert lengths == [llm.engine.context.hf_processor.feature_extractor.n_samples, 4000]
