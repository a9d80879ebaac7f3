"""LLaVA's processing is the Hugging Face processor's on text and media together: same token ids, same tensors."""

from __future__ import annotations

import subprocess
import sys
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


def picture(width: int, height: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


sizes = st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 1000))
words = st.text(st.characters(codec="utf-8", exclude_characters="<", exclude_categories=["Cs"]), max_size=12)


@given(parts=st.lists(st.one_of(words, sizes), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_the_hf_processor(model: tuple[LLM, Any], parts: list[Any]) -> None:
    """Random text, pictures of random sizes (1x1 and 1xN included), any count and order."""
    llm, processor = model
    text = "x" + "".join(part if isinstance(part, str) else "<image>" for part in parts)
    pictures = [picture(*part) for part in parts if not isinstance(part, str)]
    want = processor(text=text, images=pictures or None, return_tensors="pt")
    ids = processor.tokenizer(text)["input_ids"]
    for prompt in ({"prompt": text}, {"prompt_token_ids": ids}):
        got = llm.engine.input_processor.process({**prompt, "multi_modal_data": {"image": pictures}})
        assert got.token_ids == want["input_ids"][0].tolist()
        assert len(got.features) == len(pictures)
        for i, feature in enumerate(got.features):
            assert torch.equal(feature.data["pixel_values"].data, want["pixel_values"][i])
            place = feature.placeholder
            assert set(got.token_ids[place.offset : place.end]) == {llm.engine.context.hf_config.image_token_id}


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1"])
def test_odd_pictures_answer(model: tuple[LLM, Any], mode: str) -> None:
    """Grey, transparent, palette, print and black-and-white pictures go all the way through."""
    llm, _ = model
    prompt = {
        "prompt": "USER: <image> what? ASSISTANT:",
        "multi_modal_data": {"image": picture(40, 30, 1).convert(mode)},
    }
    assert llm.generate(prompt, SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)[0].finished


def test_processor_arguments_change_the_tensors_and_the_identity(model: tuple[LLM, Any]) -> None:
    """A request's `mm_processor_kwargs` reach the processor and are part of the item's identity."""
    llm, processor = model
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": picture(40, 30, 1)}}
    plain = llm.engine.input_processor.process(prompt).features[0]
    other = llm.engine.input_processor.process({**prompt, "mm_processor_kwargs": {"do_normalize": False}}).features[0]
    want = processor(text="<image>", images=picture(40, 30, 1), return_tensors="pt", do_normalize=False)
    assert torch.equal(other.data["pixel_values"].data, want["pixel_values"][0])
    assert plain.identifier != other.identifier


def test_dummy_is_the_worst_case(model: tuple[LLM, Any]) -> None:
    """The dummy picture takes as many tokens as any picture can."""
    llm, _ = model
    most = llm.engine.input_processor.mm_processor.profile.max_tokens["image"]
    for size in ((1, 1), (500, 3), (56, 56), (333, 777)):
        prompt = {"prompt": "<image>", "multi_modal_data": {"image": picture(*size, 0)}}
        assert llm.engine.input_processor.process(prompt).features[0].placeholder.length <= most


def test_sample_photographs(model: tuple[LLM, Any]) -> None:
    """Real photographs, two in one prompt, answered as transformers answers."""
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


def test_import_is_light() -> None:
    """Importing the adapter imports neither torch nor transformers."""
    code = "import sys, corellm_llava; print({'torch', 'transformers', 'PIL', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("seed", [0, 5])
def test_tiny_checkpoint_is_deterministic(tmp_path: Path, seed: int) -> None:
    """Same seed, same files; another seed, other weights."""
    files = []
    for name, s in (("a", seed), ("b", seed), ("c", seed + 1)):
        make_tiny_checkpoint(tmp_path / name, s)
        files.append({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert files[0]["model.safetensors"] != files[2]["model.safetensors"]
