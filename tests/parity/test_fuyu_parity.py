"""Fuyu: our tokens are transformers' tokens."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from PIL import Image

from corellm_fuyu.tiny import make_tiny_checkpoint
from tests.conftest import random_image
from tests.parity.harness import QUESTIONS, Case, Expected, ParityMatrix, generate_one

SIZES = [(25, 20), (100, 50), (210, 90), (20, 150), (640, 427), (240, 210)]
"""Of one patch, several, a single row or column almost, larger than the processor takes, and as large."""


def fuyu_case(question: str, picture: Image.Image, max_tokens: int) -> Case:
    return Case(f"{question}\n", {"image": [picture]}, max_tokens)


def fuyu_cases() -> list[Case]:
    """24 requests: text only, a picture of every kind of size, shared pictures and shared questions."""
    shared = random_image(80, 60, seed=99)
    text = [Case(f"{q}\n", {}, 20 + 6 * i) for i, q in enumerate(QUESTIONS)]
    one = [fuyu_case(q, random_image(*SIZES[i], seed=i), 5 + 2 * i) for i, q in enumerate(QUESTIONS)]
    same_question = [fuyu_case(QUESTIONS[0], random_image(*size, seed=7), 40) for size in SIZES]
    same_picture = [fuyu_case(f"Look at this picture with care. {q}", shared, 24) for q in QUESTIONS]
    return [case for group in zip(text, one, same_question, same_picture, strict=True) for case in group]


class TestFuyu(ParityMatrix):
    """Persimmon, two layers."""

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        return make_tiny_checkpoint(path)

    @classmethod
    def make_cases(cls) -> list[Case]:
        return fuyu_cases()

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        model = transformers.FuyuForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        processor = transformers.AutoProcessor.from_pretrained(checkpoint)
        expected = []
        for case in cases:
            inputs = processor(text=case.prompt, images=case.media.get("image"), return_tensors="pt")
            if case.media:  # the processor squeezes a single patch to one dimension, which the model does not take
                inputs["image_patches"] = inputs["image_patches"].reshape(1, -1, 30 * 30 * 3)
            expected.append(generate_one(model, inputs, case.max_tokens))
        return expected
