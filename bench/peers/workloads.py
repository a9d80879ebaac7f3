"""What is asked of every engine: the same prompts and images, from seeds.

Needs numpy and Pillow only: the processes of all engines import it. Prompts are text as the model reads it, images
JPEG files of 640 x 480, which every engine's side decodes while the clock runs.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

WORKLOADS = {
    "W1": "requests with an image each, all there at once",
    "W2": "requests of text, all there at once",
    "W3": "16 questions about one image after one system prompt, one after the other",
    "W4": "one request at a time",
    "W5": "a server under Poisson load, a new image in each request",
    "W6": "a process from its start to its first token, and its memory",
    "W7": "images of requests with one token out: new ones, and the same ones again",
}
_WORDS = (
    "circle", "square", "river", "seven", "window", "garden", "letter", "silver", "market", "bridge", "left", "right",
    "orange", "village", "object", "station", "forest", "paper", "island", "corner", "summer", "kitchen", "above",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A prompt and its image."""

    text: str
    image: bytes | None = None


@dataclass(frozen=True)
class Plan:
    """How much of a workload is done."""

    requests: int
    tokens: int
    """Tokens of each output."""
    batches: int = 3
    """Warm batches, after the cold one."""
    rate: float = 0.0
    """Requests a second, of W5."""
    shared_tokens: int = 0
    """Tokens at the beginning of all prompts, of W3: known once a tokenizer has seen them."""


_PLANS = {
    "W1": Plan(32, 64), "W2": Plan(32, 128), "W3": Plan(16, 8), "W4": Plan(5, 32, batches=1),
    "W5": Plan(32, 32, batches=1, rate=4.0), "W6": Plan(8, 16, batches=1), "W7": Plan(32, 1),
}  # fmt: skip


def plan_of(size: str, workload: str, *, quick: bool) -> Plan:
    """How much of a workload a model gets."""
    plan = _PLANS[workload]
    if size == "medium":
        plan = replace(plan, requests=8 if workload in ("W1", "W7") else plan.requests, rate=plan.rate / 8)
    if size == "tiny":
        return Plan(3, min(plan.tokens, 4), batches=2, rate=50.0 if plan.rate else 0.0)
    if quick:
        return replace(plan, requests=max(3, plan.requests // 4), tokens=max(1, plan.tokens // 4), batches=1)
    return plan


def requests_of(family: str, workload: str, plan: Plan, batch: int) -> list[Request]:
    """The requests of a batch; no two batches share an image or the beginning of a text."""
    words = random.Random(f"{workload} batch {batch}")
    if workload == "W3":
        system, image = _text(words, 120), _image(words)
        return [
            Request(_prompt(family, _text(words, 8), image=True, system=system), image) for _ in range(plan.requests)
        ]
    if workload == "W2":
        return [Request(_prompt(family, _text(words, 20 + 13 * i % 60))) for i in range(plan.requests)]
    return [Request(_prompt(family, _text(words, 8 + i % 8), image=True), _image(words)) for i in range(plan.requests)]


def text_request(family: str, batch: int) -> Request:
    """The text of W4, as long as those of W2 are on average."""
    return Request(_prompt(family, _text(random.Random(f"W4 text {batch}"), 50)))


def asked_again(family: str, requests: list[Request]) -> list[Request]:
    """The same images with other questions."""
    words = random.Random(requests[0].text)
    return [Request(_prompt(family, _text(words, 8 + i % 8), image=True), r.image) for i, r in enumerate(requests)]


def _prompt(family: str, question: str, *, image: bool = False, system: str = "") -> str:
    if family == "qwen2_vl":
        item = "<|vision_start|><|image_pad|><|vision_end|>" if image else ""
        first = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        return f"{first}<|im_start|>user\n{item}{question}<|im_end|>\n<|im_start|>assistant\n"
    item = "<image>\n" if image else ""
    return f"{system}{' ' if system else ''}USER: {item}{question} ASSISTANT:"


def _text(words: random.Random, count: int) -> str:
    return f"{words.getrandbits(24)} {' '.join(words.choices(_WORDS, k=count))}?"


def _image(words: random.Random) -> bytes:
    """Clouds of random colours: they compress about as well as photographs do."""
    from PIL import Image

    pixels = np.random.default_rng(words.getrandbits(32)).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


Better = Literal["more", "less"]


def better(figure: str) -> Better:
    """Whether more or less of a figure is better: rates, or times and memory."""
    return "more" if figure.endswith("/s") else "less"
