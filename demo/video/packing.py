"""Batches of training videos as patches, each with questions packed behind it in a row of tokens.

Knows the right answers, and what each patch shows for the auxiliary losses; nothing of weights or optimizers.
A batch has one size, whatever the shapes of its videos: pairs of frames are padded to PATCHES, rows to PACKED.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen2Tokenizer

from demo.packing import IGNORE, Row, attention_mask, cached_encoder, stack
from demo.video.dataset import Sample, flip
from demo.video.frames import patch_index, patches
from demo.video.model import (
    FRAMES,
    FRAMES_PER_PATCH,
    IM_END,
    IM_START,
    IMAGE,
    MAX_PIXELS,
    MERGE,
    PATCH,
    VIDEO,
    VISION_END,
    VISION_START,
)
from demo.video.moving_shapes import MOVES, SHAPES, VideoScene
from demo.video.questions import KINDS, NO_VIDEO, ask, ask_anything

PAIRS = FRAMES // FRAMES_PER_PATCH
PATCHES = MAX_PIXELS // PATCH**2  # of a pair of frames, at most
CELLS = PATCHES // MERGE**2  # a cell is MERGE x MERGE patches, and one token
NUM_LABELS = 4
PACKED = 176  # tokens of one row: the video and the questions that fit


@dataclass(frozen=True)
class Batch:
    patch_bytes: torch.Tensor  # [batch, PAIRS, PATCHES, values of a patch] uint8
    patch_positions: torch.Tensor  # [batch, PATCHES, 2]: row and column of each patch
    patch_mask: torch.Tensor  # [batch, PATCHES] bool, False for padding
    patch_labels: torch.Tensor  # [NUM_LABELS, batch, PAIRS, PATCHES], see `_label_patches`
    input_ids: torch.Tensor  # [batch, PACKED]
    labels: torch.Tensor  # [batch, PACKED], IGNORE for tokens without a target
    positions: torch.Tensor  # [3, batch, PACKED]
    cell_index: torch.Tensor  # [batch, PACKED]: index into PAIRS * CELLS features for video tokens, -1 for others
    mask: torch.Tensor  # [batch, 1, PACKED, PACKED] bool, True where a token may attend


class _VideoRow(Row):
    def __init__(self) -> None:
        super().__init__(PACKED, position_axes=3)
        self.cell_index = np.full(PACKED, -1)


def _label_patches(sample: Sample, labels: NDArray[np.int64]) -> None:
    """Label the patch at the centre of each shape, in every pair of frames.

    Args:
        labels: [NUM_LABELS, PAIRS, PATCHES], written in place: shape, movement, number of other shapes, and rank from
            left to right, from 1. All other patches get rank 0 and no other label: they are many, and with labels they
            would dominate the loss.
    """
    rows, columns = sample.frames.shape[1] // PATCH, sample.frames.shape[2] // PATCH
    num_pairs = len(sample.frames) // FRAMES_PER_PATCH
    labels[3, :num_pairs, : rows * columns] = 0
    shape, move = SHAPES.index(sample.scene.shape), list(MOVES).index(sample.scene.move)
    pairs = sample.tracks.reshape(-1, num_pairs, FRAMES_PER_PATCH, 3).mean(2)  # [shapes, pairs, 3]
    for pair in range(num_pairs):
        centres = sorted((float(x), float(y)) for x, y, visible in pairs[:, pair] if visible > 0)
        for rank, (x, y) in enumerate(centres):
            row, column = min(rows - 1, int(y * rows)), min(columns - 1, int(x * columns))
            labels[:, pair, patch_index(row, column, columns)] = shape, move, len(centres) - 1, 1 + rank


class Packer:
    """Packs questions behind their video, in rows of PACKED tokens.

    Most rows hold independent questions: each attends to the video and itself, and its positions follow the video's.
    One row in five is a dialogue, whose turns attend to everything before them. A few questions come without the video.
    """

    def __init__(self, tokenizer: Qwen2Tokenizer, seed: int) -> None:
        self._encode = cached_encoder(tokenizer)
        self._rng = random.Random(seed)
        self._turn = [IM_START, *self._encode("user\n")]
        self._reply = [IM_END, *self._encode("\n"), IM_START, *self._encode("assistant\n")]

    def pack(self, samples: list[Sample]) -> Batch:
        """Return a batch of these videos, randomly flipped, with new questions."""
        size, rng = len(samples), self._rng
        pixels = np.zeros((size, PAIRS, PATCHES, 3 * FRAMES_PER_PATCH * PATCH**2), np.uint8)
        positions, mask = np.zeros((size, PATCHES, 2), np.int64), np.zeros((size, PATCHES), bool)
        patch_labels = np.full((NUM_LABELS, size, PAIRS, PATCHES), IGNORE)
        rows = []
        for k, original in enumerate(samples):
            flipped = flip(original, *(rng.random() < 0.5 for _ in range(3)))
            sample = original if flipped.scene.unseen else flipped
            split = patches(sample.frames)
            num_pairs, num_patches, _ = split.shape
            pixels[k, :num_pairs, :num_patches], mask[k, :num_patches] = split, True
            height, width = sample.frames.shape[1] // PATCH, sample.frames.shape[2] // PATCH
            for row in range(height):
                for column in range(width):
                    positions[k, patch_index(row, column, width)] = row, column
            _label_patches(sample, patch_labels[:, k])
            token = IMAGE if sample.is_image else VIDEO
            rows.append(self._pack_row(sample.scene, token, (num_pairs, height // MERGE, width // MERGE)))
        return Batch(
            torch.from_numpy(pixels),
            torch.from_numpy(positions),
            torch.from_numpy(mask),
            torch.from_numpy(patch_labels),
            stack(rows, "ids"),
            stack(rows, "labels"),
            stack(rows, "positions").transpose(0, 1),
            stack(rows, "cell_index"),
            attention_mask(rows),
        )

    def _pack_row(self, scene: VideoScene, token: int, grid: tuple[int, int, int]) -> Row:
        """Return a row of the video and questions. grid: pairs of frames, and height and width in cells"""
        rng, row = self._rng, _VideoRow()
        position = self._add_video(row, token, grid)
        dialogue = rng.random() < 0.2
        for turn in count(1):
            without_video = not dialogue and rng.random() < 0.015
            question, answer = ask(rng, scene, rng.choice(KINDS)) if without_video else ask_anything(rng, scene)
            head, start = [*self._encode(question), *self._reply], row.end
            if without_video:
                head, answer = self._turn + head, NO_VIDEO
            elif dialogue and turn > 1:
                head = self._encode("\n") + self._turn + head
            fits = row.add_question(
                head,
                [*self._encode(answer), IM_END],
                position=0 if without_video else position,
                segment=0 if dialogue else turn,
                hide_media=without_video,
            )
            if not fits:
                break
            position += row.end - start if dialogue else 0
        return row

    def _add_video(self, row: _VideoRow, token: int, grid: tuple[int, int, int]) -> int:
        """Start the row with the video; return the position of the token after it."""
        pairs, height, width = grid
        start, num_cells = len(self._turn) + 1, pairs * height * width
        pair, cell = np.divmod(np.arange(num_cells), height * width)
        after = start + max(height, width)
        before = np.tile(np.arange(start), (3, 1))
        inside = start + np.stack([pair, cell // width, cell % width])
        positions = np.concatenate([before, inside, np.full((3, 1), after)], axis=1)
        row.add_media([*self._turn, VISION_START, *[token] * num_cells, VISION_END], positions)
        row.cell_index[start : start + num_cells] = pair * CELLS + cell
        return after + 1
