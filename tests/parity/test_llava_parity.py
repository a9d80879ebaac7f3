"""LLaVA: our tokens are transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers

from corellm_llava.tiny import make_tiny_checkpoint
from tests.conftest import random_image
from tests.parity.harness import QUESTIONS, Case, Expected, Oracle, ParityMatrix, check, generate_one


def llava_cases() -> list[Case]:
    """24 requests: text only, one picture, three of different sizes, shared prefixes, different lengths."""
    shared = random_image(80, 60, seed=99)
    text = [Case(f"USER: {q} ASSISTANT:", {}, 20 + 8 * i) for i, q in enumerate(QUESTIONS)]
    one = [
        Case(f"USER: <image>\n{q} ASSISTANT:", {"image": [random_image(40 + 17 * i, 90 - 9 * i, seed=i)]}, 5 + 2 * i)
        for i, q in enumerate(QUESTIONS)
    ]
    three = [
        Case(
            f"USER: <image> and <image>\n{q} <image> ASSISTANT:",
            {"image": [random_image(30 + 25 * j, 70 + 10 * i, seed=50 + 3 * i + j) for j in range(3)]},
            7 + 2 * i,
        )
        for i, q in enumerate(QUESTIONS)
    ]
    prefix = [
        Case(f"USER: <image>\nLook at this picture with care. {q} ASSISTANT:", {"image": [shared]}, 8)
        for q in QUESTIONS
    ]
    return [case for group in zip(text, one, three, prefix, strict=True) for case in group]


def generate_with_transformers(path: Path, cases: list[Case]) -> list[Expected]:
    """The oracle: one request at a time."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(path)
    return [
        generate_one(
            model, processor(text=c.prompt, images=c.media.get("image"), return_tensors="pt"), c.max_tokens
        )
        for c in cases
    ]  # fmt: skip


class TestTiny(ParityMatrix):
    """CLIP and Llama, two layers."""

    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        return make_tiny_checkpoint(path, **cls.options)

    @classmethod
    def make_cases(cls) -> list[Case]:
        return llava_cases()

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        return generate_with_transformers(checkpoint, cases)


class TestMid(TestTiny):
    """Four times as wide, twice as deep: errors have room to grow."""

    options: ClassVar[dict[str, Any]] = {"hidden_size": 256, "num_layers": 4, "seed": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"vision": "siglip", "text": "qwen2"},
        {"vision": "clip", "text": "mistral", "vision_feature_select_strategy": "full"},
        {"vision": "clip", "text": "llama", "vision_feature_layer": [-2, 1]},
    ],
    ids=["siglip-qwen2", "clip-mistral-full", "clip-llama-layers"],
)
def test_compositions(tmp_path: Path, options: dict[str, Any]) -> None:
    """Every tower, text model, feature layer and select strategy."""
    path, cases = make_tiny_checkpoint(tmp_path, **options), llava_cases()[:12]
    check(Oracle(path, cases, generate_with_transformers(path, cases)), max_num_batched_tokens=64)
