"""BLIP-2 answers as transformers does: the whole matrix, and what its checkpoints vary in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from corellm_blip2.tiny import make_tiny_checkpoint
from tests.conftest import random_image
from tests.parity.harness import QUESTIONS, Case, Expected, Oracle, ParityMatrix, check, generate_one

OTHER_SIZE = {"size": {"height": 28, "width": 84}}
"""Not the tower's size, nor square: positions are interpolated."""


def load(path: Path, **changes: Any) -> Any:
    """The oracle."""
    return transformers.Blip2ForConditionalGeneration.from_pretrained(path, dtype=torch.float32, **changes).eval()


class TestBlip2(ParityMatrix):
    """OPT, tied embeddings."""

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        """The tiny one."""
        return make_tiny_checkpoint(path)

    @classmethod
    def make_cases(cls) -> list[Case]:
        """24 requests: text only, one picture at two sizes, one picture that several ask about, different lengths."""
        shared = {"image": [random_image(80, 60, seed=99)]}
        text = [Case(f"Question: {q} Answer:", {}, 20 + 8 * i) for i, q in enumerate(QUESTIONS)]
        one = [
            Case(f"Question: {q} Answer:", {"image": [random_image(40 + 17 * i, 90 - 9 * i, seed=i)]}, 5 + 2 * i)
            for i, q in enumerate(QUESTIONS)
        ]
        larger = [
            Case(q, {"image": [random_image(150, 90, seed=50 + i)]}, 9, OTHER_SIZE) for i, q in enumerate(QUESTIONS)
        ]
        prefix = [Case(f"Question: Look at this picture with care. {q} Answer:", shared, 8) for q in QUESTIONS]
        return [case for group in zip(text, one, larger, prefix, strict=True) for case in group]

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        """`generate`; of the text model alone where there is no picture, for BLIP-2's own wants one."""
        model, processor = load(checkpoint), transformers.AutoProcessor.from_pretrained(checkpoint)
        expected = []
        for case in cases:
            images = case.media.get("image")
            inputs = processor(text=case.prompt, images=images, return_tensors="pt", **case.processor_kwargs)
            if images is None:
                expected.append(generate_one(model.language_model, inputs, case.max_tokens))
            else:
                expected.append(generate_one(model, {**inputs, "interpolate_pos_encoding": True}, case.max_tokens))
        return expected


def test_image_token_without_an_embedding(tmp_path: Path) -> None:
    """Where the embedding table ends before the image token, a picture is seen all the same.

    Transformers cannot embed such a prompt; the oracle is told that another token, absent from the prompts, is the
    image token.
    """
    path = make_tiny_checkpoint(tmp_path, embed_image_token=False, num_layers=4, seed=1)
    cases = TestBlip2.make_cases()[1:12:4]
    processor = transformers.AutoProcessor.from_pretrained(path)
    image_token, other = processor.tokenizer.convert_tokens_to_ids("<image>"), processor.tokenizer.pad_token_id
    model = load(path, image_token_index=other)
    assert image_token == model.get_input_embeddings().num_embeddings
    expected = []
    for case in cases:
        inputs = processor(text=case.prompt, images=case.media["image"], return_tensors="pt")
        ids = inputs["input_ids"]
        assert other not in ids
        seen = {**inputs, "input_ids": ids.masked_fill(ids == image_token, other)}
        answer = generate_one(model, seen, case.max_tokens)
        expected.append(Expected(ids[0].tolist(), answer.token_ids, answer.logprobs))
    check(Oracle(path, cases, expected), max_num_batched_tokens=16)
