"""Images of handwritten numbers, composed of digit images, and the digit images held out for testing.

The digits are the 1797 images of scikit-learn's `load_digits`, 8 x 8 grey levels each.
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

from demo.canvas import COLOURS, Box, DrawnImage, Rgb, degrade, luminance, sample_colour, sample_size

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
    """Return the indices of the images of each digit; the test part is a fixed stratified fifth."""
    target = load_digits().target
    train, test = train_test_split(
        np.arange(len(target)), test_size=TEST_SHARE, stratify=target, random_state=SPLIT_SEED
    )
    chosen = train if part == "train" else test
    return {str(digit): [int(i) for i in chosen if target[i] == digit] for digit in range(10)}


@cache
def _glyphs() -> list[Image.Image]:
    """Return the digit images, upscaled, with 255 for full ink and a blank border."""
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
    """Return ink and paper colours with enough contrast; black or white ink where the scene's ink has too little."""
    paper = sample_colour(rng, scene.background)
    for _ in range(8):
        ink = sample_colour(rng, scene.ink)
        if abs(luminance(ink) - luminance(paper)) >= 60:
            return ink, paper
    return sample_colour(rng, "white" if luminance(paper) < 128 else "black"), paper


def _warp(rng: random.Random, glyph: Image.Image, width: int, height: int, augment: bool) -> Image.Image:
    """Return the glyph at `width` x `height`, turned, slanted, stretched and bent; strongly when `augment` is set."""
    cells = 3
    full = GLYPH + 2 * EDGE
    amount = 1.0 if augment else 0.2
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


def _pen(rng: random.Random, augment: bool) -> list[int]:
    """Return the ink for each grey level, from the soft original to a hard pen; a lower threshold is a thicker pen."""
    levels = np.arange(256) / 255
    if rng.random() < 0.3:
        return [int(v) for v in 255 * levels ** rng.uniform(0.7, 1.3)]
    threshold = rng.uniform(0.28, 0.55) if augment else rng.uniform(0.35, 0.5)
    softness = rng.uniform(0.05, 0.3) if augment else rng.uniform(0.1, 0.25)
    return [int(v) for v in 255 * np.clip((levels - threshold) / softness + 0.5, 0, 1)]


def draw_scene(
    rng: random.Random, scene: NumberScene, part: Part, augment: bool = False, size: tuple[int, int] | None = None
) -> DrawnImage:
    """Draw a number with digit images of `part`.

    Args:
        augment: distort the digits and degrade the image, for training.
        size: width and height; sampled when not given.
    """
    width, height = size or sample_size(rng, augment, max_aspect=2.2)
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
    pen = _pen(rng, augment)
    alpha = Image.new("L", (width, height))
    boxes = []
    for rank, digit in enumerate(scene.number):
        scale = rng.uniform(0.9, 1.0)
        w, h = max(6, round(box_width * scale)), max(6, round(box_height * scale))
        x = min(width - w, max(0, round(left + rank * pitch + (box_width - w) / 2)))
        y = min(height - h, max(0, round(top + rng.uniform(0, 1) * (box_height - h))))
        glyph = _glyphs()[rng.choice(digit_indices(part)[digit])]
        stamp = Image.new("L", (width, height))
        stamp.paste(_warp(rng, glyph, w, h, augment).point(pen), (x, y))
        alpha = ImageChops.lighter(alpha, stamp)
        boxes.append(Box(x / width, y / height, (x + w) / width, (y + h) / height, int(digit), rank))
    ink, paper = _ink_and_paper(rng, scene)
    image = Image.composite(Image.new("RGB", alpha.size, ink), Image.new("RGB", alpha.size, paper), alpha)
    return DrawnImage(degrade(rng, image) if augment else image, tuple(boxes))
