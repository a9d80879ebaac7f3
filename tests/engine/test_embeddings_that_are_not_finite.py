"""An item whose embeddings are not finite fails the requests that have it, and nothing else, now or later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, RequestOutput, SamplingParams
from corellm.errors import EncoderError
from tests.fixtures import random_image

USUAL: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": 1}


def question(image: int, text: str) -> dict[str, Any]:
    return {"prompt": f"<image> {text}", "multi_modal_data": {"image": random_image(40, 30, image)}}


PROMPTS = [question(1, "what"), question(2, "what"), question(3, "what"), question(2, "where"), {"prompt": "no image"}]
BROKEN = (1, 3)
"""Those with the second image."""


def with_broken(llm: LLM, value: float) -> Callable[..., list[torch.Tensor]]:
    """Return the model's encoder, with `value` among the second image's embeddings."""
    (feature,) = llm.engine.input_processor.process(PROMPTS[1]).features
    pixels, encode = feature.data["pixel_values"].data, llm.engine.runner.encoders._encode

    def broken(modality: str, mm_kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        rows = [part.clone() for part in encode(modality, mm_kwargs)]
        for part, own in zip(rows, mm_kwargs["pixel_values"], strict=True):
            if torch.equal(own, pixels):
                part[-1, 0] = value
        return rows

    return broken


def assert_broken(output: RequestOutput) -> None:
    assert isinstance(output.error, EncoderError)
    assert "image 0: its embeddings hold NaN or infinity in torch.float32" in str(output.error)
    assert not output.outputs[0].token_ids
    known = [position for position in output.prompt_logprobs or [] if position is not None]  # of text before the image
    assert all(math.isfinite(found.logprob) for position in known for found in position.values())


@pytest.fixture
def load(tiny_llava: Path) -> Iterator[Callable[..., LLM]]:
    """Load the tiny model with options."""
    loaded: list[LLM] = []

    def make(**options: Any) -> LLM:
        usual: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "block_size": 8, "device": "cpu"}
        loaded.append(LLM(str(tiny_llava), **usual, **options))
        return loaded[-1]

    yield make
    for llm in loaded:
        llm.close()


@pytest.mark.parametrize("tokens", [512, 24], ids=["one step", "several steps for an image"])
@pytest.mark.parametrize(
    ("value", "more"), [(torch.nan, {}), (torch.inf, {}), (torch.nan, {"prompt_logprobs": 1})], ids=str
)
def test_others_go_on(load: Callable[..., LLM], tokens: int, value: float, more: dict[str, Any]) -> None:
    """And neither embeddings nor blocks of theirs are kept: once the encoder works, all prompts give what they gave."""
    llm, params = load(max_num_batched_tokens=tokens), SamplingParams(**USUAL, **more)
    wanted = llm.generate(PROMPTS, params)
    llm.reset_prefix_cache()
    llm.reset_mm_cache()
    encoders = llm.engine.runner.encoders
    encode, encoders._encode = encoders._encode, with_broken(llm, value)  # type: ignore[method-assign]
    found = llm.generate(PROMPTS, params, on_error="return")
    for number, (output, before) in enumerate(zip(found, wanted, strict=True)):
        if number in BROKEN:
            assert_broken(output)
        else:
            assert output.error is None
            assert output.outputs == before.outputs
    encoders._encode = encode  # type: ignore[method-assign]
    again = llm.generate(PROMPTS, params)
    assert [output.outputs for output in again] == [output.outputs for output in wanted]


def test_the_reason_stays(load: Callable[..., LLM]) -> None:
    """Where the step failed, too, and its requests ran one by one."""
    llm = load(max_num_batched_tokens=512)
    runner = llm.engine.runner
    runner.encoders._encode = with_broken(llm, torch.nan)  # type: ignore[method-assign]
    forward = runner.forward

    def failing(batch: Any, chunks: Any, states: Any) -> torch.Tensor:
        if len(chunks) > 1:
            raise RuntimeError("together they are too many")
        return forward(batch, chunks, states)

    runner.forward = failing  # type: ignore[method-assign]
    found = llm.generate(PROMPTS, SamplingParams(**USUAL), on_error="return")
    for number, output in enumerate(found):
        if number in BROKEN:
            assert_broken(output)
        else:
            assert output.error is None
