"""LLaVA's processing is the Hugging Face processor's on text and media together: same token ids, same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "clip": {"vision": "clip"},
    "clip-full": {"vision": "clip", "vision_feature_select_strategy": "full"},
    "siglip": {"vision": "siglip", "text": "qwen2"},
}


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Any]]:
    """The loaded model and the Hugging Face processor of the same checkpoint."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("llava"), **VARIANTS[request.param])
    with LLM(str(path), dtype="float32") as llm:
        yield llm, transformers.AutoProcessor.from_pretrained(path)


def make_image(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


sizes = st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 1000))
words = st.text(st.characters(codec="utf-8", exclude_characters="<", exclude_categories=["Cs"]), max_size=12)


@given(parts=st.lists(st.one_of(words, sizes), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_the_hf_processor(model: tuple[LLM, Any], parts: list[Any]) -> None:
    """Random text, images of random sizes (1x1 and 1xN included), any count and order."""
    llm, processor = model
    text = "x" + "".join(part if isinstance(part, str) else "<image>" for part in parts)
    images = [make_image(*part) for part in parts if not isinstance(part, str)]
    want = processor(text=text, images=images or None, return_tensors="pt")
    ids = processor.tokenizer(text)["input_ids"]
    for prompt in ({"prompt": text}, {"prompt_token_ids": ids}):
        got = llm.engine.input_processor.process({**prompt, "multi_modal_data": {"image": images}})
        assert got.token_ids == want["input_ids"][0].tolist()
        assert len(got.features) == len(images)
        for i, feature in enumerate(got.features):
            assert torch.equal(feature.data["pixel_values"].data, want["pixel_values"][i])
            place = feature.placeholder
            assert set(got.token_ids[place.offset : place.end]) == {llm.engine.context.hf_config.image_token_id}


def test_sample_photographs(model: tuple[LLM, Any]) -> None:
    """Real photographs, two in one prompt: the tokens are transformers'."""
    from sklearn.datasets import load_sample_images

    llm, processor = model
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    text = "USER: <image> or <image>? ASSISTANT:"
    inputs = processor(text=text, images=photographs, return_tensors="pt")
    path: Path = llm.engine.context.model_path
    reference = transformers.LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    want = reference.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    prompt = {"prompt": text, "multi_modal_data": {"image": photographs}}
    got = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8, min_tokens=8), use_tqdm=False)
    assert got[0].outputs[0].token_ids == want[0, inputs["input_ids"].shape[1] :].tolist()
