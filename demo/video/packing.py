"""Packing: a batch of clips as patches, each with questions about it in a row of tokens.

Knows what the model must answer, and what each patch shows for the auxiliary losses; nothing of weights or optimizers.
Whatever the shapes of its clips, a batch has one size: pairs of frames are filled up to PATCHES, rows to PACKED.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen2Tokenizer

from demo.video.clips import MOVES, SHAPES, ClipScene
from demo.video.frames import patch_index, patches
from demo.video.lessons import Lesson, mirrored
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
from demo.video.questions import KINDS, NO_VIDEO, ask, ask_anything

PAIRS = FRAMES // FRAMES_PER_PATCH
PATCHES = MAX_PIXELS // PATCH**2  # of a pair of frames, at most
CELLS = PATCHES // MERGE**2
NUM_LABELS = 4
PACKED = 176  # tokens of one row: the clip and the questions that fit
IGNORE = -100


@dataclass(frozen=True)
class Batch:
    patch_bytes: torch.Tensor  # [batch, PAIRS, PATCHES, values of a patch] uint8
    places: torch.Tensor  # [batch, PATCHES, 2]: row and column of each patch
    there: torch.Tensor  # [batch, PATCHES] bool, False for padding
    patch_labels: torch.Tensor  # [NUM_LABELS, batch, PAIRS, PATCHES], as `_label` says
    input_ids: torch.Tensor  # [batch, PACKED]
    labels: torch.Tensor  # [batch, PACKED], IGNORE where nothing is to be learnt
    positions: torch.Tensor  # [3, batch, PACKED]
    cells: torch.Tensor  # [batch, PACKED]: which of PAIRS * CELLS features a token takes, -1 for none
    mask: torch.Tensor  # [batch, 1, PACKED, PACKED] bool, True where a token may look


class _Row:
    """One row of a batch while it is filled: ids, labels, cells, segments (0 is the clip, -1 padding), positions."""

    def __init__(self) -> None:
        self.ids = np.zeros(PACKED, np.int64)
        self.labels = np.full(PACKED, IGNORE)
        self.cells = np.full(PACKED, -1)
        self.segments = np.full(PACKED, -1)
        self.alone = np.zeros(PACKED, bool)  # tokens that do not see the clip
        self.positions = np.zeros((3, PACKED), np.int64)


def _label(lesson: Lesson, labels: NDArray[np.int64]) -> None:
    """Label the patch where each shape is centred in a pair of frames.

    Args:
        labels: [NUM_LABELS, PAIRS, PATCHES], filled in: shape, movement, how many others there are, and the rank from
            left to right, from 1. All other patches have rank 0, and no other label, lest these few drown in them.
    """
    rows, columns = lesson.frames.shape[1] // PATCH, lesson.frames.shape[2] // PATCH
    count = len(lesson.frames) // FRAMES_PER_PATCH
    labels[3, :count, : rows * columns] = 0
    shape, move = SHAPES.index(lesson.scene.shape), list(MOVES).index(lesson.scene.move)
    pairs = lesson.tracks.reshape(-1, count, FRAMES_PER_PATCH, 3).mean(2)  # [shapes, pairs, 3]
    for pair in range(count):
        here = sorted((float(x), float(y)) for x, y, visible in pairs[:, pair] if visible > 0)
        for rank, (x, y) in enumerate(here):
            row, column = min(rows - 1, int(y * rows)), min(columns - 1, int(x * columns))
            labels[:, pair, patch_index(row, column, columns)] = shape, move, len(here) - 1, 1 + rank


class Packer:
    """Packs questions behind their clip, in rows of PACKED tokens.

    Most rows hold independent questions: each sees the clip and itself, and its positions follow the clip's. One row in
    five is a dialogue, whose turns see everything before them. Now and then a question comes without the clip.
    """

    def __init__(self, tokenizer: Qwen2Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._known: dict[str, list[int]] = {}
        self._causal = torch.ones(PACKED, PACKED, dtype=torch.bool).tril()
        self._turn = [IM_START, *self._encode("user\n")]
        self._reply = [IM_END, *self._encode("\n"), IM_START, *self._encode("assistant\n")]

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._known[text]

    def pack(self, lessons: list[Lesson]) -> Batch:
        batch, rng = len(lessons), self._rng
        values = 3 * FRAMES_PER_PATCH * PATCH**2
        pixels = np.zeros((batch, PAIRS, PATCHES, values), np.uint8)
        places, there = np.zeros((batch, PATCHES, 2), np.int64), np.zeros((batch, PATCHES), bool)
        patch_labels = np.full((NUM_LABELS, batch, PAIRS, PATCHES), IGNORE)
        rows = [_Row() for _ in lessons]
        for k, original in enumerate(lessons):
            lesson = mirrored(original, *(rng.random() < 0.5 for _ in range(3)))
            lesson = original if lesson.scene.unseen else lesson
            split = patches(lesson.frames)
            pairs, count, _ = split.shape
            pixels[k, :pairs, :count], there[k, :count] = split, True
            height, width = lesson.frames.shape[1] // PATCH, lesson.frames.shape[2] // PATCH
            for row in range(height):
                for column in range(width):
                    places[k, patch_index(row, column, width)] = row, column
            _label(lesson, patch_labels[:, k])
            token = IMAGE if lesson.picture else VIDEO
            self._fill(rows[k], lesson.scene, token, (pairs, height // MERGE, width // MERGE))
        ids, labels, cells, segments, alone, positions = (
            torch.from_numpy(np.stack([getattr(row, name) for row in rows]))
            for name in ("ids", "labels", "cells", "segments", "alone", "positions")
        )
        same = segments[:, :, None] == segments[:, None, :]
        clip = (segments[:, None, :] == 0) & ~alone[:, :, None]
        mask = (same | clip) & self._causal
        return Batch(
            torch.from_numpy(pixels),
            torch.from_numpy(places),
            torch.from_numpy(there),
            torch.from_numpy(patch_labels),
            ids,
            labels,
            positions.transpose(0, 1),
            cells,
            mask[:, None],
        )

    def _fill(self, row: _Row, scene: ClipScene, token: int, grid: tuple[int, int, int]) -> None:
        """grid: pairs of frames, and height and width of the clip in cells."""
        rng, start = self._rng, len(self._turn) + 1
        pairs, height, width = grid
        count = pairs * height * width
        end = start + count + 1
        row.ids[:end] = [*self._turn, VISION_START, *[token] * count, VISION_END]
        row.segments[:end] = 0
        pair, cell = np.divmod(np.arange(count), height * width)
        row.cells[start : end - 1] = pair * CELLS + cell
        row.positions[:, :start] = np.arange(start)
        row.positions[:, start : end - 1] = start + np.stack([pair, cell // width, cell % width])
        follows = start + max(height, width)
        row.positions[:, end - 1] = follows
        dialogue, turn, first = rng.random() < 0.2, 1, end
        while True:
            blind = not dialogue and rng.random() < 0.015
            question, answer = ask(rng, scene, rng.choice(KINDS)) if blind else ask_anything(rng, scene)
            head = [*self._encode(question), *self._reply]
            if blind:
                head, answer = self._turn + head, NO_VIDEO
            elif dialogue and turn > 1:
                head = self._encode("\n") + self._turn + head
            tail = [*self._encode(answer), IM_END]
            middle, end = first + len(head), first + len(head) + len(tail)
            if end > PACKED:
                return
            row.ids[first:end] = head + tail
            row.labels[middle:end] = tail
            begins = 0 if blind else follows + 1
            row.positions[:, first:end] = np.arange(begins, begins + end - first)
            row.segments[first:end] = 0 if dialogue else turn
            row.alone[first:end] = blind
            follows += end - first if dialogue else 0
            first = end
            turn += 1
