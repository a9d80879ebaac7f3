"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL answer as transformers does: pictures, video, and both in one prompt.

The oracle's tensors come from our own processing, for transformers' needs torchvision; that they are equal to those of
transformers' own processors is proved in the plugin's tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers

from corellm import LLM
from corellm_qwen_vl.tiny import make_tiny_checkpoint
from tests.conftest import random_image
from tests.parity.harness import QUESTIONS, Case, Expected, Oracle, ParityMatrix, check, generate_one

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def clip(num_frames: int, width: int, height: int, seed: int, fps: float = 4.0) -> Any:
    """Frames of noise, each unlike the others, with their rate."""
    pixels = np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)
    return pixels, {"fps": fps}


def ask(media: str, question: str) -> str:
    """A turn of chatml."""
    return f"<|im_start|>user\n{media}{question}<|im_end|>\n<|im_start|>assistant\n"


def model_inputs(llm: LLM, case: Case) -> dict[str, torch.Tensor]:
    """What transformers' model is called with."""
    processed = llm.engine.input_processor.process(case.engine_prompt)
    ids = torch.tensor([processed.token_ids])
    config = llm.engine.context.hf_config
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if processed.features:
        kinds = (ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int()
        inputs["mm_token_type_ids"] = kinds
    for name, join in (
        ("pixel_values", torch.cat),
        ("pixel_values_videos", torch.cat),
        ("image_grid_thw", torch.stack),
        ("video_grid_thw", torch.stack),
        ("second_per_grid_ts", torch.stack),
    ):
        parts = [feature.data[name].data for feature in processed.features if name in feature.data]
        if parts and (name != "second_per_grid_ts" or config.model_type == "qwen2_5_vl"):
            inputs[name] = join(parts)
    return inputs


class QwenMatrix(ParityMatrix):
    """The matrix; a subclass names the generation."""

    architecture: ClassVar[str]
    model_class: ClassVar[Any]

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        """The tiny one."""
        return make_tiny_checkpoint(path, architecture=cls.architecture)

    @classmethod
    def make_cases(cls) -> list[Case]:
        """24 requests: text, pictures, video, both, a clip that several ask about, of different sizes and lengths."""
        shared = {"video": [clip(8, 70, 50, seed=99)]}
        text = [Case(ask("", q), {}, 20 + 8 * i) for i, q in enumerate(QUESTIONS)]
        pictures = [random_image(60 + 20 * i, 200 - 9 * i, i) for i in range(2 * len(QUESTIONS))]
        images = [
            Case(ask(IMAGE * (1 + i % 2), q), {"image": pictures[2 * i : 2 * i + 1 + i % 2]}, 6 + i)
            for i, q in enumerate(QUESTIONS)
        ]
        both = [
            Case(
                ask(f"{VIDEO} then {IMAGE} or {VIDEO}", q[:30]),
                {
                    "video": [clip(4 + i, 50 + 10 * i, 70, 50 + i), clip(2, 60, 60, 70 + i, fps=0.4 + 0.3 * i)],
                    "image": [random_image(90, 70 + 8 * i, 80 + i)],
                },
                8,
                {"fps": 1.5} if i % 2 else {},
            )
            for i, q in enumerate(QUESTIONS)
        ]
        prefix = [Case(ask(f"{VIDEO}Look at this clip with care. ", q[:30]), shared, 8) for q in QUESTIONS]
        # short prompts with long answers first: they run side by side until the blocks are used up
        return text + [case for group in zip(images, both, prefix, strict=True) for case in group]

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        """`generate`."""
        model = cls.model_class.from_pretrained(checkpoint, dtype=torch.float32).eval()
        with LLM(str(checkpoint), dtype="float32") as llm:
            return [generate_one(model, model_inputs(llm, case), case.max_tokens) for case in cases]


class TestQwen2VL(QwenMatrix):
    """The first of dynamic resolution."""

    architecture = "Qwen2VLForConditionalGeneration"
    model_class = transformers.Qwen2VLForConditionalGeneration


class TestQwen2_5VL(QwenMatrix):
    """Window attention in the tower; time in seconds."""

    architecture = "Qwen2_5_VLForConditionalGeneration"
    model_class = transformers.Qwen2_5_VLForConditionalGeneration


class TestQwen3VL(QwenMatrix):
    """Deepstack; time stamps in the prompt."""

    architecture = "Qwen3VLForConditionalGeneration"
    model_class = transformers.Qwen3VLForConditionalGeneration


@pytest.mark.parametrize("cls", [TestQwen2VL, TestQwen2_5VL, TestQwen3VL])
def test_a_larger_model(cls: type[QwenMatrix], tmp_path: Path) -> None:
    """Four layers of four times the width, so that deepstack's levels are fewer than layers, chunk by chunk."""
    path = make_tiny_checkpoint(tmp_path, 1, architecture=cls.architecture, hidden_size=256, num_layers=4)
    cases = cls.make_cases()[4:16]
    check(Oracle(path, cases, cls.answer(path, cases)), max_num_batched_tokens=16)
