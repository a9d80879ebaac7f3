"""Handwritten numbers: real digit images set side by side, and which digit images only testing may use.

The digits are the 1797 images of scikit-learn's `load_digits`, 8 x 8 grey levels each, from real pens.
Knows nothing of questions, tokens or the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from PIL import Image, ImageChops
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from demo.canvas import COLOURS, Mark, Picture, Rgb, luminance, sample_colour, sample_size, wear

Part = Literal["train", "test"]

TEST_SHARE = 0.2
SPLIT_SEED = 0
GLYPH = 48  # side of an upscaled digit image
EDGE = 6  # blank border around it, so that a turned digit is not cut


@dataclass(frozen=True)
class NumberScene:
    """A number of one to three digits without leading zeros, on paper of one colour."""

    number: str
    background: str
    ink: str


@cache
def digit_indices(part: Part) -> dict[str, list[int]]:
    """Which of the 1797 images show each digit; the test part is a fixed stratified fifth."""
    target = load_digits().target
    train, test = train_test_split(
        np.arange(len(target)), test_size=TEST_SHARE, stratify=target, random_state=SPLIT_SEED
    )
    chosen = train if part == "train" else test
    return {str(digit): [int(i) for i in chosen if target[i] == digit] for digit in range(10)}


@cache
def _glyphs() -> list[Image.Image]:
    """Each digit image, smoothly upscaled, full ink at 255, with a blank border."""
    glyphs = []
    for raw in load_digits().images:  # raw: [8, 8], 0 to 16
        small = Image.fromarray((raw / raw.max() * 255).astype(np.uint8))
        framed = Image.new("L", (GLYPH + 2 * EDGE, GLYPH + 2 * EDGE))
        framed.paste(small.resize((GLYPH, GLYPH), Image.Resampling.BICUBIC), (EDGE, EDGE))
        glyphs.append(framed)
    return glyphs


def sample_scene(rng: random.Random, digits: int | None = None) -> NumberScene:
    length = digits or rng.choices((1, 2, 3), (2, 3, 5))[0]
    number = "".join(rng.choice("123456789" if k == 0 and length > 1 else "0123456789") for k in range(length))
    background, ink = rng.sample(list(COLOURS), 2)
    if rng.random() < 0.4:
        background, ink = "white", rng.choice(("black", "blue", "black", "red"))
    return NumberScene(number, background, ink)


def _ink_and_paper(rng: random.Random, scene: NumberScene) -> tuple[Rgb, Rgb]:
    """Ink that can be read on the paper: if the scene's own ink cannot, black or white, whichever can."""
    paper = sample_colour(rng, scene.background)
    for _ in range(8):
        ink = sample_colour(rng, scene.ink)
        if abs(luminance(ink) - luminance(paper)) >= 60:
            return ink, paper
    return sample_colour(rng, "white" if luminance(paper) < 128 else "black"), paper


def _warp(rng: random.Random, glyph: Image.Image, width: int, height: int, rough: bool) -> Image.Image:
    """The glyph at `width` x `height`; when rough, turned, slanted, stretched and bent as by other hands."""
    cells = 3
    full = GLYPH + 2 * EDGE
    amount = 1.0 if rough else 0.2
    turn, slant = rng.gauss(0, 0.10) * amount, rng.gauss(0, 0.14) * amount
    stretch_x, stretch_y = 1 + rng.uniform(-0.12, 0.14) * amount, 1 + rng.uniform(-0.1, 0.12) * amount
    bend = rng.uniform(0, 1.7) * amount

    def source(column: int, row: int) -> tuple[float, float]:
        x, y = (column / cells - 0.5) * GLYPH, (row / cells - 0.5) * GLYPH
        x, y = x * stretch_x + y * (turn + slant), y * stretch_y - x * turn
        return full / 2 + x + rng.gauss(0, bend), full / 2 + y + rng.gauss(0, bend)

    lattice = [[source(column, row) for column in range(cells + 1)] for row in range(cells + 1)]
    mesh = []
    for row in range(cells):
        for column in range(cells):
            target = (
                width * column // cells,
                height * row // cells,
                width * (column + 1) // cells,
                height * (row + 1) // cells,
            )
            quad = (
                *lattice[row][column],
                *lattice[row + 1][column],
                *lattice[row + 1][column + 1],
                *lattice[row][column + 1],
            )
            mesh.append((target, quad))
    return glyph.transform((width, height), Image.Transform.MESH, mesh, Image.Resampling.BICUBIC)


def _pen(rng: random.Random, rough: bool) -> list[int]:
    """Grey level to ink: from the soft original to a hard pen; a lower threshold is a thicker pen."""
    levels = np.arange(256) / 255
    if rng.random() < 0.3:
        return [int(v) for v in 255 * levels ** rng.uniform(0.7, 1.3)]
    threshold = rng.uniform(0.28, 0.55) if rough else rng.uniform(0.35, 0.5)
    softness = rng.uniform(0.05, 0.3) if rough else rng.uniform(0.1, 0.25)
    return [int(v) for v in 255 * np.clip((levels - threshold) / softness + 0.5, 0, 1)]


def draw_scene(
    rng: random.Random, scene: NumberScene, part: Part, rough: bool = False, size: tuple[int, int] | None = None
) -> Picture:
    """`rough` adds other hands and worn pictures, for training; `size` (width, height) is sampled when not given."""
    width, height = size or sample_size(rng, rough, max_aspect=2.2)
    count = len(scene.number)
    # A digit's box is a third of the width for three digits, and never much taller or flatter than it is wide.
    box_width = width * rng.uniform(0.72, 0.97) / count if count == 3 else width * rng.uniform(0.24, 0.45)
    if count == 1:
        box_width = width * rng.uniform(0.22, 0.8)
    box_height = min(height * rng.uniform(0.35, 0.94), box_width * rng.uniform(1.0, 1.9))
    box_height = max(box_height, 0.3 * height)
    box_width = min(box_width, box_height * 1.25)
    pitch = box_width * rng.uniform(0.84, 1.0)
    total = pitch * (count - 1) + box_width
    left = rng.uniform(0, max(0.0, width - total))
    top = rng.uniform(0, height - box_height)
    pen = _pen(rng, rough)
    alpha = Image.new("L", (width, height))
    marks = []
    for rank, digit in enumerate(scene.number):
        scale = rng.uniform(0.9, 1.0)
        w, h = max(6, round(box_width * scale)), max(6, round(box_height * scale))
        x = min(width - w, max(0, round(left + rank * pitch + (box_width - w) / 2)))
        y = min(height - h, max(0, round(top + rng.uniform(0, 1) * (box_height - h))))
        glyph = _glyphs()[rng.choice(digit_indices(part)[digit])]
        stamp = Image.new("L", (width, height))
        stamp.paste(_warp(rng, glyph, w, h, rough).point(pen), (x, y))
        alpha = ImageChops.lighter(alpha, stamp)
        marks.append(Mark(x / width, y / height, (x + w) / width, (y + h) / height, int(digit), rank))
    ink, paper = _ink_and_paper(rng, scene)
    image = Image.composite(Image.new("RGB", alpha.size, ink), Image.new("RGB", alpha.size, paper), alpha)
    return Picture(wear(rng, image) if rough else image, tuple(marks))
