"""An item whose embeddings are not finite fails the requests that have it, and nothing else, now or later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import EncoderError
from tests.fixtures import random_image

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)


def question(image: int, text: str) -> dict[str, Any]:
    return {"prompt": f"<image> {text}", "multi_modal_data": {"image": random_image(40, 30, image)}}


PROMPTS = [question(1, "what"), question(2, "what"), question(3, "what"), question(2, "where"), {"prompt": "no image"}]
BROKEN = (1, 3)
"""Those with the second image."""


@pytest.mark.parametrize("tokens", [512, 24], ids=["one step", "several steps for an image"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_others_go_on(tiny_llava: Path, tokens: int, value: float) -> None:
    """And neither embeddings nor blocks of theirs are kept: once the encoder works, all prompts give what they gave."""
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "block_size": 8, "device": "cpu"}
    with LLM(str(tiny_llava), max_num_batched_tokens=tokens, **options) as llm:
        wanted = llm.generate(PROMPTS, PARAMS)
        llm.reset_prefix_cache()
        llm.reset_mm_cache()
        (feature,) = llm.engine.input_processor.process(PROMPTS[1]).features
        pixels = feature.data["pixel_values"].data
        encoders = llm.engine.runner.encoders
        encode = encoders._encode

        def broken(modality: str, mm_kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
            rows = [part.clone() for part in encode(modality, mm_kwargs)]
            for part, own in zip(rows, mm_kwargs["pixel_values"], strict=True):
                if torch.equal(own, pixels):
                    part[-1, 0] = value
            return rows

        encoders._encode = broken  # type: ignore[method-assign]
        found = llm.generate(PROMPTS, PARAMS, on_error="return")
        for number, (output, before) in enumerate(zip(found, wanted, strict=True)):
            if number in BROKEN:
                assert isinstance(output.error, EncoderError)
                assert "image 0: its embeddings hold NaN or infinity in torch.float32" in str(output.error)
                assert not output.outputs[0].token_ids
            else:
                assert output.error is None
                assert output.outputs == before.outputs
        encoders._encode = encode  # type: ignore[method-assign]
        again = llm.generate(PROMPTS, PARAMS)
        assert [output.outputs for output in again] == [output.outputs for output in wanted]
