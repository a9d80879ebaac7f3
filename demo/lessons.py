"""Lessons: pictures drawn once and kept, and batches of packed questions about them for training.

Knows what the model must answer, and what each patch shows for the auxiliary losses; nothing of weights or optimizers.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

from demo import handwriting, shapes
from demo.canvas import Mark
from demo.model import BOS, EOS, GRID, IMAGE, NUM_IMAGE_TOKENS, SIDE
from demo.questions import NO_PICTURE, PHRASINGS, Scene, ask, ask_anything

NUM_RANKS = 5
PACKED = 144  # tokens of one row: the picture and the questions that fit
IGNORE = -100


@dataclass(frozen=True)
class Lessons:
    """Pictures, their scenes, and per patch: which shape is centred there, which digit covers it, and its rank."""

    pixels: np.ndarray  # [num_pictures, SIDE, SIDE, 3] uint8
    scenes: list[Scene]
    shape_labels: np.ndarray  # [num_pictures, NUM_IMAGE_TOKENS] int8; 0 is nothing, else 1 + index into SHAPES
    digit_labels: np.ndarray  # [num_pictures, NUM_IMAGE_TOKENS] int8; 0 is nothing, else 1 + the digit
    rank_labels: np.ndarray  # [num_pictures, NUM_IMAGE_TOKENS] int8; 0 is nothing, else 1 + the rank from left to right


@dataclass(frozen=True)
class Batch:
    pixel_bytes: torch.Tensor  # [batch, SIDE, SIDE, 3] uint8
    input_ids: torch.Tensor  # [batch, PACKED]
    labels: torch.Tensor  # [batch, PACKED], IGNORE where nothing is to be learnt
    positions: torch.Tensor  # [batch, PACKED]
    mask: torch.Tensor  # [batch, 1, PACKED, PACKED] bool, True where a token may look
    shape_labels: torch.Tensor  # [batch, NUM_IMAGE_TOKENS]
    digit_labels: torch.Tensor  # [batch, NUM_IMAGE_TOKENS]
    rank_labels: torch.Tensor  # [batch, NUM_IMAGE_TOKENS]


def _covered(mark: Mark, number: bool) -> list[int]:
    """Patches that speak for a mark: the one at a shape's centre, or those well within a digit's box."""
    x, y = (mark.left + mark.right) / 2 * GRID, (mark.top + mark.bottom) / 2 * GRID
    home = min(GRID - 1, max(0, int(y))) * GRID + min(GRID - 1, max(0, int(x)))
    if not number:
        return [home]
    half_width, half_height = (mark.right - mark.left) * 0.3 * GRID, (mark.bottom - mark.top) * 0.36 * GRID
    inside = [
        row * GRID + column
        for row in range(GRID)
        for column in range(GRID)
        if abs(column + 0.5 - x) < half_width and abs(row + 0.5 - y) < half_height
    ]
    return inside or [home]


def _draw_share(seed: int, count: int) -> Lessons:
    rng = random.Random(seed)
    pixels = np.empty((count, SIDE, SIDE, 3), np.uint8)
    scenes: list[Scene] = []
    labels = np.zeros((3, count, NUM_IMAGE_TOKENS), np.int8)
    for k in range(count):
        rough = rng.random() < 0.75
        scene: Scene
        if rng.random() < 0.5:
            scene = handwriting.sample_scene(rng)
            picture = handwriting.draw_scene(rng, scene, "train", rough)
        else:
            scene = shapes.sample_scene(rng, "train")
            picture = shapes.draw_scene(rng, scene, rough)
        number = isinstance(scene, handwriting.NumberScene)
        pixels[k] = np.asarray(picture.image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        scenes.append(scene)
        for mark in picture.marks:
            patches = _covered(mark, number)
            labels[1 if number else 0, k, patches] = 1 + mark.label
            labels[2, k, patches] = 1 + mark.rank
    return Lessons(pixels, scenes, labels[0], labels[1], labels[2])


def draw_lessons(seed: int, count: int, workers: int = 2, share: int = 2000) -> Lessons:
    """`count` training pictures; the same for the same seed, however many workers draw them."""
    shares = [min(share, count - start) for start in range(0, count, share)]
    with ProcessPoolExecutor(workers) as pool:
        parts = list(pool.map(_draw_share, range(seed * 10_000, seed * 10_000 + len(shares)), shares))
    return Lessons(
        np.concatenate([part.pixels for part in parts]),
        [scene for part in parts for scene in part.scenes],
        np.concatenate([part.shape_labels for part in parts]),
        np.concatenate([part.digit_labels for part in parts]),
        np.concatenate([part.rank_labels for part in parts]),
    )


class Packer:
    """Packs questions behind their picture, in rows of PACKED tokens.

    Most rows hold independent questions: each sees the picture and itself, and its positions follow the picture's.
    One row in five is a dialogue, whose turns see everything before them. Now and then a question comes without the
    picture.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._known: dict[str, list[int]] = {}
        self._prefix = [BOS, *self._encode("USER: "), *[IMAGE] * NUM_IMAGE_TOKENS]
        self._causal = torch.ones(PACKED, PACKED, dtype=torch.bool).tril()

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._known[text]

    def pack(self, lessons: Lessons, chosen: np.ndarray) -> Batch:
        batch = len(chosen)
        # [batch, PACKED] each: ids, labels, positions, segment (0 is the picture, -1 is padding)
        ids, labels = np.zeros((batch, PACKED), np.int64), np.full((batch, PACKED), IGNORE)
        positions, segments = np.zeros((batch, PACKED), np.int64), np.full((batch, PACKED), -1)
        alone = np.zeros((batch, PACKED), bool)  # tokens that do not see the picture
        for row, index in enumerate(chosen):
            self._pack_row(lessons.scenes[index], ids[row], labels[row], positions[row], segments[row], alone[row])
        segment = torch.from_numpy(segments)
        same = segment[:, :, None] == segment[:, None, :]
        picture = (segment[:, None, :] == 0) & ~torch.from_numpy(alone)[:, :, None]
        mask = (same | picture) & self._causal
        return Batch(
            torch.from_numpy(lessons.pixels[chosen]),
            torch.from_numpy(ids),
            torch.from_numpy(labels),
            torch.from_numpy(positions),
            mask[:, None],
            *(
                torch.from_numpy(table[chosen].astype(np.int64))
                for table in (lessons.shape_labels, lessons.digit_labels, lessons.rank_labels)
            ),
        )

    def _pack_row(
        self,
        scene: Scene,
        ids: np.ndarray,
        labels: np.ndarray,
        positions: np.ndarray,
        segments: np.ndarray,
        alone: np.ndarray,
    ) -> None:
        rng = self._rng
        start = len(self._prefix)
        ids[:start], positions[:start], segments[:start] = self._prefix, np.arange(start), 0
        dialogue = rng.random() < 0.2
        turn = 1
        while True:
            question, answer = ask_anything(rng, scene)
            blind = not dialogue and rng.random() < 0.015
            if blind:
                question = ask(rng, scene, rng.choice([k for k in PHRASINGS if k != "where"]))[0]
                head = [BOS, *self._encode(f"USER: {question} ASSISTANT:")]
                answer = NO_PICTURE
            else:
                head = self._encode(("USER: " if dialogue and turn > 1 else "\n") + question + " ASSISTANT:")
            tail = [*self._encode(" " + answer), EOS]
            end = start + len(head) + len(tail)
            if end > PACKED:
                return
            ids[start:end] = head + tail
            labels[start + len(head) : end] = tail
            first = 0 if blind else start if dialogue else len(self._prefix)
            positions[start:end] = np.arange(first, first + end - start)
            segments[start:end] = 0 if dialogue else turn
            alone[start:end] = blind
            start = end
            turn += 1
