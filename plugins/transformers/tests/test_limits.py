"""What the core checks of every item holds for the generic adapter, which calls the processor itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import MediaTooLargeError, ProcessorKwargsError
from corellm.multimodal import dummy_audios
from corellm_transformers.tiny import make_tiny_checkpoint


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model whose processor scales the shorter side of an image."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), architecture="VipLlavaForConditionalGeneration")
    with LLM(str(path), dtype="float32", max_image_pixels=10**7) as loaded:
        yield loaded


def ask(llm: LLM, image: Image.Image, **kwargs: object) -> None:
    """Send one image."""
    hooks = llm.engine.input_processor.mm_processor.hooks
    text = hooks.get_placeholder_str(modality="image", index=0)
    prompt = {"prompt": f"{text}What?", "multi_modal_data": {"image": image}, "mm_processor_kwargs": kwargs}
    llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)


def test_an_image_of_one_line_is_not_scaled_to_gigabytes(llm: LLM) -> None:
    """Its other side would be thousands of times as long."""
    with pytest.raises(MediaTooLargeError, match="30000 x 1 pixels"):
        ask(llm, Image.new("RGB", (30_000, 1)))
    ask(llm, Image.new("RGB", (60, 40)))


def test_a_request_may_not_raise_the_size(llm: LLM) -> None:
    """Memory was planned for the checkpoint's."""
    with pytest.raises(ProcessorKwargsError, match="memory"):
        ask(llm, Image.new("RGB", (60, 40)), size={"shortest_edge": 5_000})


def test_every_audio_that_fits_the_prompt_is_planned_for(tmp_path: Path) -> None:
    """The encoder cache holds the largest item, and no more: an audio of any length that fits has a place in it."""
    path = make_tiny_checkpoint(tmp_path, architecture="GlmAsrForConditionalGeneration")
    with LLM(str(path), dtype="float32", max_model_len=100, encoder_cache_size=0) as llm:
        processor = llm.engine.input_processor.mm_processor
        text = processor.hooks.get_placeholder_str(modality="audio", index=0)
        (audio,) = dummy_audios(1, num_samples=7 * 16_000)
        prompt = {"prompt": text, "multi_modal_data": {"audio": audio}}
        (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
        assert 80 < len(output.prompt_token_ids) < 100
        assert processor.profile.max_embeds["audio"] <= 100
