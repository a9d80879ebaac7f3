"""Training images with labels, and batches of questions packed behind them.

Knows the right answers, and what each patch shows for the auxiliary losses; nothing of weights or optimizers.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast

from demo import handwriting, shapes
from demo.canvas import Box
from demo.model import BOS, EOS, GRID, IMAGE, NUM_IMAGE_TOKENS, SIDE
from demo.packing import Row, attention_mask, cached_encoder, stack
from demo.questions import NO_IMAGE, PHRASINGS, Scene, ask, ask_anything

NUM_RANKS = 5
PACKED = 144  # tokens of one row: the image and the questions that fit


@dataclass(frozen=True)
class Dataset:
    """Images, their scenes, and three labels of each patch, 0 for background.

    The labels are 1 + the index into SHAPES of the shape centred there, 1 + the digit that covers it, and 1 + the rank
    of that shape or digit from left to right.
    """

    pixels: np.ndarray  # [num_images, SIDE, SIDE, 3] uint8
    scenes: list[Scene]
    patch_labels: np.ndarray  # [num_images, 3, NUM_IMAGE_TOKENS] int8


@dataclass(frozen=True)
class Batch:
    pixel_bytes: torch.Tensor  # [batch, SIDE, SIDE, 3] uint8
    input_ids: torch.Tensor  # [batch, PACKED]
    labels: torch.Tensor  # [batch, PACKED], IGNORE for tokens without a target
    positions: torch.Tensor  # [batch, PACKED]
    mask: torch.Tensor  # [batch, 1, PACKED, PACKED] bool, True where a token may attend
    patch_labels: torch.Tensor  # [batch, 3, NUM_IMAGE_TOKENS], as in Dataset


def _labelled_patches(box: Box, is_digit: bool) -> list[int]:
    """Return the patches that get a box's label: the one at a shape's centre, or those well within a digit's box."""
    x, y = (box.left + box.right) / 2 * GRID, (box.top + box.bottom) / 2 * GRID
    centre = min(GRID - 1, max(0, int(y))) * GRID + min(GRID - 1, max(0, int(x)))
    if not is_digit:
        return [centre]
    half_width, half_height = (box.right - box.left) * 0.3 * GRID, (box.bottom - box.top) * 0.36 * GRID
    inside = [
        row * GRID + column
        for row in range(GRID)
        for column in range(GRID)
        if abs(column + 0.5 - x) < half_width and abs(row + 0.5 - y) < half_height
    ]
    return inside or [centre]


def _draw_shard(seed: int, size: int) -> Dataset:
    rng = random.Random(seed)
    pixels = np.empty((size, SIDE, SIDE, 3), np.uint8)
    scenes: list[Scene] = []
    labels = np.zeros((size, 3, NUM_IMAGE_TOKENS), np.int8)
    for k in range(size):
        augment = rng.random() < 0.75
        scene: Scene
        if rng.random() < 0.5:
            scene = handwriting.sample_scene(rng)
            drawn = handwriting.draw_scene(rng, scene, "train", augment)
        else:
            scene = shapes.sample_scene(rng, "train")
            drawn = shapes.draw_scene(rng, scene, augment)
        is_digit = isinstance(scene, handwriting.NumberScene)
        pixels[k] = np.asarray(drawn.image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        scenes.append(scene)
        for box in drawn.boxes:
            patches = _labelled_patches(box, is_digit)
            labels[k, 1 if is_digit else 0, patches] = 1 + box.label
            labels[k, 2, patches] = 1 + box.rank
    return Dataset(pixels, scenes, labels)


def draw_dataset(seed: int, size: int, workers: int = 2, shard_size: int = 2000) -> Dataset:
    """Return `size` training images; the same seed gives the same images, whatever the number of workers."""
    sizes = [min(shard_size, size - start) for start in range(0, size, shard_size)]
    with ProcessPoolExecutor(workers) as pool:
        shards = list(pool.map(_draw_shard, range(seed * 10_000, seed * 10_000 + len(sizes)), sizes))
    return Dataset(
        np.concatenate([shard.pixels for shard in shards]),
        [scene for shard in shards for scene in shard.scenes],
        np.concatenate([shard.patch_labels for shard in shards]),
    )


class Packer:
    """Packs questions behind their image, in rows of PACKED tokens.

    Most rows hold independent questions: each attends to the image and itself, and its positions follow the image's.
    One row in five is a dialogue, whose turns attend to everything before them. A few questions come without the image.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._encode = cached_encoder(tokenizer)
        self._rng = random.Random(seed)
        self._prefix = [BOS, *self._encode("USER: "), *[IMAGE] * NUM_IMAGE_TOKENS]

    def pack(self, dataset: Dataset, indices: np.ndarray) -> Batch:
        """Return a batch of the images with these indices, with new questions."""
        rows = [self._pack_row(dataset.scenes[index]) for index in indices]
        return Batch(
            torch.from_numpy(dataset.pixels[indices]),
            stack(rows, "ids"),
            stack(rows, "labels"),
            stack(rows, "positions")[:, 0],
            attention_mask(rows),
            torch.from_numpy(dataset.patch_labels[indices].astype(np.int64)),
        )

    def _pack_row(self, scene: Scene) -> Row:
        rng, row = self._rng, Row(PACKED)
        row.add_media(self._prefix, np.arange(len(self._prefix)))
        dialogue = rng.random() < 0.2
        for turn in count(1):
            question, answer = ask_anything(rng, scene)
            without_image = not dialogue and rng.random() < 0.015
            if without_image:
                question = ask(rng, scene, rng.choice([k for k in PHRASINGS if k != "where"]))[0]
                head, answer = [BOS, *self._encode(f"USER: {question} ASSISTANT:")], NO_IMAGE
            else:
                head = self._encode(("USER: " if dialogue and turn > 1 else "\n") + question + " ASSISTANT:")
            fits = row.add_question(
                head,
                [*self._encode(" " + answer), EOS],
                position=0 if without_image else row.end if dialogue else len(self._prefix),
                segment=0 if dialogue else turn,
                hide_media=without_image,
            )
            if not fits:
                break
        return row
