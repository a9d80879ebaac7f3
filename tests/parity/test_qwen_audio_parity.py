"""Qwen2-Audio: our tokens are transformers' tokens.

The encoder's mask counts here: without it the padding behind a short sound is attended to, and every answer differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from corellm_qwen_audio.tiny import make_tiny_checkpoint
from tests.parity.harness import QUESTIONS, Case, Expected, Oracle, ParityMatrix, check, generate_one

RATE = 16_000


def sound(seconds: float, seed: int) -> np.ndarray[Any, Any]:
    """Noise that swells, over a tone of its own."""
    at = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).standard_normal(len(at)) * 0.1 * (1 + np.sin(4 * at))
    return (noise + 0.2 * np.sin(2 * np.pi * (150 + 83 * seed) * at)).astype(np.float32)


def ask(question: str, *sounds: np.ndarray[Any, Any], max_tokens: int) -> Case:
    """One turn of a conversation, as the family's chat template writes it."""
    heard = "".join(f"Audio {i + 1}: <|audio_bos|><|AUDIO|><|audio_eos|>\n" for i in range(len(sounds)))
    prompt = f"<|im_start|>user\n{heard}{question}<|im_end|>\n<|im_start|>assistant\n"
    return Case(prompt, {"audio": list(sounds)} if sounds else {}, max_tokens)


def cases() -> list[Case]:
    """24 requests: text only, one sound of any length, three of different lengths, one that several ask about."""
    shared = sound(1.5, seed=99)
    text = [ask(q, max_tokens=20 + 10 * i) for i, q in enumerate(QUESTIONS)]
    one = [ask(q, sound(0.05 + 0.55 * i, seed=i), max_tokens=6 + 2 * i) for i, q in enumerate(QUESTIONS)]
    three = [
        ask(q, *(sound(0.3 + 0.1 * i + 0.2 * j, seed=10 + 3 * i + j) for j in range(3)), max_tokens=6 + i)
        for i, q in enumerate(QUESTIONS)
    ]
    prefix = [ask(f"Listen with care. {q}", shared, max_tokens=24) for q in QUESTIONS]
    return [case for group in zip(text, one, three, prefix, strict=True) for case in group]


def answer(checkpoint: Path, requests: list[Case]) -> list[Expected]:
    """`generate` on what transformers' processor makes of text and sounds together."""
    model = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(checkpoint)
    expected = []
    for case in requests:
        inputs = processor(text=case.prompt, audio=case.media.get("audio"), sampling_rate=RATE, return_tensors="pt")
        expected.append(generate_one(model, inputs, case.max_tokens))
    return expected


class TestQwen2Audio(ParityMatrix):
    """An encoder that hears 4 seconds."""

    @classmethod
    def make_checkpoint(cls, path: Path) -> Path:
        return make_tiny_checkpoint(path, seconds=4)

    @classmethod
    def make_cases(cls) -> list[Case]:
        return cases()

    @classmethod
    def answer(cls, checkpoint: Path, cases: list[Case]) -> list[Expected]:
        return answer(checkpoint, cases)


def test_thirty_seconds(tmp_path: Path) -> None:
    """The published size: a full one, one sample less, and short ones among them, in chunks."""
    path = make_tiny_checkpoint(tmp_path)
    requests = [
        ask("What is it?", sound(30, seed=1), max_tokens=8),
        ask("Which is longer?", sound(0.021, seed=2), sound(30, seed=3)[:-1], sound(3, seed=4), max_tokens=8),
    ]
    check(Oracle(path, requests, answer(path, requests)), max_num_batched_tokens=256)
