"""What the contract's prompts lack: image tokens without a line break, beside text and each other, for each tower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corellm import LLM
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

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


sizes = st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 1000))
words = st.text(st.characters(codec="utf-8", exclude_characters="<", exclude_categories=["Cs"]), max_size=12)


@given(parts=st.lists(st.one_of(words, sizes), min_size=1, max_size=7))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_the_hf_processor(model: tuple[LLM, Any], parts: list[Any]) -> None:
    """Same token ids and tensors; images of random sizes (1x1 and 1xN included), any count and order."""
    llm, processor = model
    text = "x" + "".join(part if isinstance(part, str) else "<image>" for part in parts)
    images = [make_image(*part) for part in parts if not isinstance(part, str)]
    want = processor(text=text, images=images or None, return_tensors="pt")
    for prompt in ({"prompt": text}, {"prompt_token_ids": processor.tokenizer(text)["input_ids"]}):
        got = llm.engine.input_processor.process({**prompt, "multi_modal_data": {"image": images}})
        assert got.token_ids == want["input_ids"][0].tolist()
        assert len(got.features) == len(images)
        for i, feature in enumerate(got.features):
            assert torch.equal(feature.data["pixel_values"].data, want["pixel_values"][i])
            place = feature.placeholder
            assert set(got.token_ids[place.offset : place.end]) == {llm.engine.context.hf_config.image_token_id}


@pytest.mark.parametrize("vision", ["clip", "siglip"])
@pytest.mark.parametrize(("chosen", "unused"), [(-2, 1), (-1, 0), (1, 2), ([1, -3], 2), ([0, -1], 0)])
def test_layers_behind_the_chosen_ones_are_not_computed(
    tmp_path: Path, vision: str, chosen: int | list[int], unused: int
) -> None:
    """Embeddings are those of transformers, also where the unused layers would give no numbers."""
    path = make_tiny_checkpoint(tmp_path, vision=vision, vision_feature_layer=chosen)
    theirs = transformers.LlavaForConditionalGeneration.from_pretrained(path).eval()
    layers = next(x for x in theirs.model.vision_tower.modules() if isinstance(x, torch.nn.ModuleList))
    for layer in layers[len(layers) - unused :]:
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, torch.nan)
    theirs.save_pretrained(path)
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
    with LLM(str(path), dtype="float32") as llm, torch.inference_mode():
        runner = llm.engine.runner
        ours = runner.hooks.get_multimodal_embeddings(
            model=runner.model, modality="image", mm_kwargs={"pixel_values": pixels.to(runner.device)}
        )
        wanted = theirs.get_image_features(pixels).pooler_output
        assert runner.model.model.vision_tower(pixels.to(runner.device)).last_hidden_state.isfinite().all()
    torch.testing.assert_close(torch.stack(list(ours)).cpu(), torch.stack(list(wanted)), rtol=1e-4, atol=1e-4)
