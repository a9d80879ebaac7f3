"""Named colours, canvas sizes, bounding boxes and augmentation of all drawn images.

Knows nothing of shapes, digits or questions.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Rgb = tuple[int, int, int]

# Each name covers a region of RGB: a sample is a random mixture of two of its anchors, plus jitter.
COLOURS: dict[str, tuple[Rgb, ...]] = {
    "red": ((255, 0, 0), (200, 20, 25), (230, 55, 50), (178, 10, 15)),
    "green": ((0, 128, 0), (0, 250, 0), (40, 160, 60), (50, 205, 50), (20, 110, 40)),
    "blue": ((0, 0, 255), (30, 60, 200), (40, 110, 230), (10, 10, 150)),
    "yellow": ((255, 255, 0), (255, 222, 0), (240, 230, 70)),
    "purple": ((128, 0, 128), (140, 50, 180), (150, 40, 220), (100, 20, 140)),
    "orange": ((255, 165, 0), (255, 140, 0), (240, 115, 20)),
    "black": ((0, 0, 0), (12, 12, 12), (32, 32, 32)),
    "white": ((255, 255, 255), (250, 250, 250), (236, 236, 236)),
    "grey": ((128, 128, 128), (100, 100, 100), (175, 175, 175)),
}

PLAIN_SIZES = (56, 64, 96, 128, 160, 224)
AUGMENTED_SIZES = (48, 56, 64, 72, 88, 112, 150, 200, 256, 320)


@dataclass(frozen=True)
class Box:
    """One shape or digit: its edges as fractions of width and height, its class, its rank from left to right."""

    left: float
    top: float
    right: float
    bottom: float
    label: int
    rank: int


@dataclass(frozen=True)
class DrawnImage:
    image: Image.Image
    boxes: tuple[Box, ...]


def sample_colour(rng: random.Random, name: str) -> Rgb:
    one, two = rng.choice(COLOURS[name]), rng.choice(COLOURS[name])
    share = rng.random()
    red, green, blue = (
        min(255, max(0, round(a + share * (b - a) + rng.uniform(-7, 7)))) for a, b in zip(one, two, strict=True)
    )
    return red, green, blue


def distance(one: Rgb, two: Rgb) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) ** 0.5)


def luminance(colour: Rgb) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def sample_pair(rng: random.Random, front: str, back: str, min_distance: float = 85.0) -> tuple[Rgb, Rgb]:
    """Return two colours at least `min_distance` apart in RGB; `front` and `back` are different names."""
    while True:
        pair = sample_colour(rng, front), sample_colour(rng, back)
        if distance(*pair) >= min_distance:
            return pair


def sample_size(rng: random.Random, augment: bool, max_aspect: float) -> tuple[int, int]:
    """Return width and height of a canvas: half are square, the others up to `max_aspect` times wider or taller."""
    short = rng.choice(AUGMENTED_SIZES if augment else PLAIN_SIZES)
    if rng.random() < 0.5:
        return short, short
    long = round(short * rng.uniform(1.0, max_aspect))
    return (long, short) if rng.random() < 0.75 else (short, min(long, round(short * 1.5)))


def degrade(rng: random.Random, image: Image.Image) -> Image.Image:
    """Return the image with random blur, resampling, noise, a light gradient and JPEG artefacts."""
    if rng.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.012 * min(image.size))))
    if rng.random() < 0.15:
        factor = rng.uniform(0.6, 1.6)
        size = max(48, round(image.width * factor)), max(48, round(image.height * factor))
        how = rng.choice((Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.LANCZOS))
        image = image.resize(size, how)
    if rng.random() < 0.3:
        noise = np.random.default_rng(rng.getrandbits(32))
        pixels: NDArray[np.floating[Any]] = np.asarray(image, np.float32)  # [height, width, 3]
        pixels = pixels + noise.normal(0, rng.uniform(1, 12), pixels.shape)
        if rng.random() < 0.5:
            ramp = np.linspace(-1, 1, image.width)[None, :, None] * rng.uniform(-8, 8)
            pixels = pixels + ramp + np.linspace(-1, 1, image.height)[:, None, None] * rng.uniform(-8, 8)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.15:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(40, 90))
        image = Image.open(buffer).convert("RGB")
    return image
