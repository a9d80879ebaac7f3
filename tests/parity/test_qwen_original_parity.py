"""The original Qwen-VL gives the tokens of a plain forward pass written from its description, whatever the engine does.

Transformers lacks this model, so the oracle is `qwen_original_reference`, which shares no line with the plugin.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from corellm_qwen_vl.original.tiny import make_tiny_checkpoint
from tests.conftest import random_image
from tests.parity.harness import QUESTIONS, Case, Expected, Oracle, ParityMatrix, check
from tests.parity.qwen_original_reference import ReferenceModel, ReferenceTokenizer


def make_cases() -> list[Case]:
    """24 requests: text only, a picture by its path, three pictures, a shared beginning."""
    shared = random_image(80, 60, seed=99)
    cases = []
    for i, question in enumerate(QUESTIONS):
        one = random_image(40 + 17 * i, 90 - 9 * i, seed=i)
        three = [random_image(30 + 25 * j, 70 + 10 * i, seed=50 + 3 * i + j) for j in range(3)]
        cases += [
            Case(f"USER: {question} ASSISTANT:", {}, 20 + 8 * i),
            Case(f"Picture 1: <img>/some/where/{i}.jpg</img>\n{question}", {"image": [one]}, 15 + 4 * i),
            Case(f"<img></img>or <img></img>? {question} <img></img>", {"image": three}, 7 + 2 * i),
            Case(f"Picture 1: <img></img>\nLook at it with care. {question}", {"image": [shared]}, 8),
        ]
    return cases


def answer(checkpoint: Path, cases: list[Case]) -> list[Expected]:
    """The reference, one request at a time; the engine's `min_tokens` keeps the end of text out."""
    model, tokenizer = ReferenceModel(checkpoint), ReferenceTokenizer(checkpoint)
    ends = [tokenizer.specials[token] for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    expected = []
    for case in cases:
        ids = tokenizer.encode_prompt(case.prompt, model.num_queries)
        expected.append(Expected(ids, *model.generate(ids, case.media.get("image", []), case.max_tokens, never=ends)))
    return expected


class TestQwenVLParity(ParityMatrix):
    """The matrix."""

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        return make_tiny_checkpoint(path, n_queries=16)

    @classmethod
    def make_cases(cls) -> list[Case]:
        return make_cases()

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        return answer(checkpoint, cases)


def test_published_picture_length(tmp_path: Path) -> None:
    """Pictures of 256 tokens, weights in several files, a wider and deeper model."""
    checkpoint = make_tiny_checkpoint(tmp_path, seed=3, hidden_size=384, num_layers=3, num_shards=3)
    cases = [replace(case, max_tokens=4) for case in make_cases() if case.media][:4]
    oracle = Oracle(checkpoint, cases, answer(checkpoint, cases))
    for chunk in (100, 8192):
        _, outputs = check(oracle, max_num_batched_tokens=chunk)
        assert max(len(output.prompt_token_ids) for output in outputs) > 3 * 256


def test_the_oracle_looks_at_pictures(tmp_path: Path) -> None:
    """Other pixels or other places, other embeddings: else the reference would prove little."""
    model = ReferenceModel(make_tiny_checkpoint(tmp_path, n_queries=16))
    first, second = (model.encode_image(random_image(40, 40, seed=i)) for i in range(2))
    assert first.shape == (16, 256)
    assert not torch.allclose(first, second, atol=0.1)
    assert torch.pdist(first).min() > 0.1, "every query sees something else"
