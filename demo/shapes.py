"""Images of drawn shapes: their scenes, the combinations held out from training, and how a scene is drawn.

Knows nothing of questions, tokens or the model.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

from demo.canvas import COLOURS, Box, DrawnImage, degrade, sample_pair, sample_size

SHAPES = ("circle", "square", "triangle", "cross", "star")
COUNTS = (1, 2, 3, 4, 5)
PLACES = (("top left", "top", "top right"), ("left", "middle", "right"), ("bottom left", "bottom", "bottom right"))

Part = Literal["train", "unseen"]


@dataclass(frozen=True)
class ShapeScene:
    """`count` shapes of one kind and colour; `place` is the position of a single shape, None for several."""

    shape: str
    colour: str
    count: int
    background: str
    place: tuple[int, int] | None = None  # row and column of a 3 x 3 grid

    @property
    def unseen(self) -> bool:
        """True for one combination of shape, colour, count and background in ten; training draws none of them."""
        return zlib.crc32(f"{self.shape} {self.colour} {self.count} {self.background}".encode()) % 10 == 0


def sample_scene(rng: random.Random, part: Part) -> ShapeScene:
    while True:
        colour, background = rng.sample(list(COLOURS), 2)
        count = rng.choice(COUNTS)
        place = (rng.randrange(3), rng.randrange(3)) if count == 1 else None
        scene = ShapeScene(rng.choice(SHAPES), colour, count, background, place)
        if scene.unseen == (part == "unseen"):
            return scene


def _outline(shape: str, radius: float, angle: float) -> list[tuple[float, float]]:
    """Return the corners of a shape around the origin; a circle has none."""
    arm = 0.32
    if shape == "square":
        corners = [(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)]
    elif shape == "triangle":
        corners = [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)]
    elif shape == "cross":
        corners = [(-arm, -1.0), (arm, -1.0), (arm, -arm), (1.0, -arm), (1.0, arm), (arm, arm)]
        corners += [(-x, -y) for x, y in corners]
    else:
        turns = [(1.0 if k % 2 == 0 else 0.42, math.pi * k / 5) for k in range(10)]
        corners = [(r * math.sin(t), -r * math.cos(t)) for r, t in turns]
    cos, sin = math.cos(angle) * radius, math.sin(angle) * radius
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in corners]


def _angle(rng: random.Random) -> float:
    spread = 10 if rng.random() < 0.75 else 180
    return math.radians(rng.uniform(-spread, spread))


def _lay_out(rng: random.Random, scene: ShapeScene, width: int, height: int) -> list[tuple[float, float, float]]:
    """Return centre and radius of each shape in pixels; no shape touches another or the border."""
    short = min(width, height)
    if scene.place is not None:
        row, column = scene.place
        x = ((column + 0.5) / 3 + rng.uniform(-0.085, 0.085)) * width
        y = ((row + 0.5) / 3 + rng.uniform(-0.085, 0.085)) * height
        room = min(x, y, width - x, height - y)
        return [(x, y, max(min(room, 0.09 * short), rng.uniform(0.6, 0.97) * min(room, 0.45 * short)))]
    base = rng.uniform(0.105, 0.185 if scene.count < 4 else 0.155) * short
    while True:
        placed: list[tuple[float, float, float]] = []
        for _ in range(60):
            radius = base * rng.uniform(0.9, 1.1)
            x, y = rng.uniform(radius, width - radius), rng.uniform(radius, height - radius)
            if all(math.hypot(x - a, y - b) > (radius + r) * 1.12 for a, b, r in placed):
                placed.append((x, y, radius))
            if len(placed) == scene.count:
                return placed
        base = max(0.1 * short, base * 0.96)


def draw_scene(
    rng: random.Random, scene: ShapeScene, augment: bool = False, size: tuple[int, int] | None = None
) -> DrawnImage:
    """Draw a scene.

    Args:
        augment: degrade the image and allow coarse edges, for training.
        size: width and height; sampled when not given.
    """
    width, height = size or sample_size(rng, augment, max_aspect=1.6)
    fine = 1 if max(width, height) > 300 else rng.choice((1, 2, 3) if augment else (2, 3))  # supersampling
    front, back = sample_pair(rng, scene.colour, scene.background)
    image = Image.new("RGB", (width * fine, height * fine), back)
    draw = ImageDraw.Draw(image)
    angle = _angle(rng)
    boxes = []
    placed = _lay_out(rng, scene, width, height)
    for rank, (x, y, radius) in enumerate(sorted(placed)):
        edges = [(x - radius) * fine, (y - radius) * fine, (x + radius) * fine, (y + radius) * fine]
        if scene.shape == "circle":
            draw.ellipse(edges, fill=front)
        else:
            corners = _outline(scene.shape, radius * fine, angle if rng.random() < 0.5 else _angle(rng))
            draw.polygon([(x * fine + dx, y * fine + dy) for dx, dy in corners], fill=front)
        left, top, right, bottom = (
            v / fine / side for v, side in zip(edges, (width, height, width, height), strict=True)
        )
        boxes.append(Box(left, top, right, bottom, SHAPES.index(scene.shape), rank))
    if fine > 1:
        image = image.reduce(fine)
    return DrawnImage(degrade(rng, image) if augment else image, tuple(boxes))
