"""What is asked: the same pictures, texts and token ids for us and for transformers, drawn from seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

QUESTIONS = (
    "What is in the picture?",
    "How many objects are there, and which colours do they have?",
    "Describe the scene from left to right, and then what lies in the background.",
    "Is there any text? If so, what does it say?",
)


@dataclass(frozen=True)
class PictureRequest:
    """A question about a picture of its own."""

    text: str
    picture: Any

    @property
    def prompt(self) -> dict[str, Any]:
        """As `LLM.generate` takes it."""
        return {"prompt": self.text, "multi_modal_data": {"image": self.picture}}


def picture(seed: int) -> Any:
    """A photograph's worth of noise, `PIL.Image` of 640 x 480."""
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (480, 640, 3), dtype=np.uint8))


def picture_requests(count: int, seed: int) -> list[PictureRequest]:
    """Questions of different lengths; those of different seeds share no picture."""
    return [
        PictureRequest(
            f"USER: <image>\nNumber {i}: {QUESTIONS[i % len(QUESTIONS)]} ASSISTANT:", picture(1_000_000 * seed + i)
        )
        for i in range(count)
    ]


def token_requests(count: int, seed: int, *, shortest: int, longest: int, vocab: int) -> list[list[int]]:
    """Random tokens above the special ones, the lengths spread evenly."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, count)
    return [rng.integers(10, vocab, length).tolist() for length in lengths]


def questions_about_one_picture(count: int, rules: int) -> tuple[Any, list[str]]:
    """A picture, and prompts that share a long system prompt and the picture."""
    system = " ".join(f"Rule {i}: answer in one sentence." for i in range(rules))
    texts = [f"SYSTEM: {system} USER: <image>\nNumber {i}: {QUESTIONS[i % 4]} ASSISTANT:" for i in range(count)]
    return picture(777), texts
