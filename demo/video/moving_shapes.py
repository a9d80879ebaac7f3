"""Videos of moving shapes: their scenes, the combinations held out from training, and how frames are drawn.

Knows nothing of questions, tokens or the model. A video shows shapes of one kind and colour that move together, or
stand still, on a plain background. Every shape stays within the frame while it is visible.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from demo.canvas import COLOURS, Rgb, sample_pair

SHAPES = ("circle", "square", "triangle")
INKS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white")
COUNTS = (1, 2, 3, 4)
MOVES = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "nowhere": (0, 0)}  # x to the right, y down

SHORT_SIDES = (64, 64, 72, 80, 96, 112, 120, 144, 180, 240)
ASPECTS = (1.0, 1.0, 4 / 3, 4 / 3, 3 / 2, 16 / 9, 16 / 9, 5 / 4, 2.0)

Part = Literal["train", "unseen"]
Frames = NDArray[np.uint8]  # [num_frames, height, width, 3]


@dataclass(frozen=True)
class VideoScene:
    """`count` shapes of one kind and colour that all move in the direction `move`."""

    shape: str
    colour: str
    count: int
    move: str
    background: str

    @property
    def unseen(self) -> bool:
        """True for one combination of shape, colour, count and movement in ten; training draws none of them."""
        return zlib.crc32(f"{self.shape} {self.colour} {self.count} {self.move}".encode()) % 10 == 0


@dataclass(frozen=True)
class Video:
    frames: Frames
    tracks: NDArray[np.float32]  # [count, num_frames, 3]: centre as shares of width and height, and 1.0 where visible


def sample_scene(rng: random.Random, part: Part) -> VideoScene:
    while True:
        colour = rng.choice(INKS)
        background = rng.choice([name for name in COLOURS if name != colour])
        scene = VideoScene(rng.choice(SHAPES), colour, rng.choice(COUNTS), rng.choice(list(MOVES)), background)
        if scene.unseen == (part == "unseen"):
            return scene


def sample_size(rng: random.Random) -> tuple[int, int]:
    """Return width and height, both even, as codecs require; one video in four is upright."""
    short = rng.choice(SHORT_SIDES)
    aspect = rng.choice(ASPECTS) if rng.random() < 0.8 else rng.uniform(1.0, 2.0)
    long = round(short * aspect / 2) * 2
    return (long, short) if rng.random() < 0.75 else (short, long)


@dataclass(frozen=True)
class _Body:
    """One shape: its start and radius in pixels, its angle, and the share of the video in which it is visible."""

    x: float
    y: float
    radius: float
    angle: float
    first: float = 0.0
    last: float = 1.0


def _travel(rng: random.Random, move: str, width: int, height: int) -> tuple[float, float]:
    """Return how far all shapes move during the video, in pixels, some with a little drift sideways."""
    dx, dy = MOVES[move]
    distance = rng.uniform(0.24, 0.72)
    drift = rng.uniform(-0.1, 0.1) * distance * min(width, height) if rng.random() < 0.3 else 0.0
    return dx * distance * width + abs(dy) * drift, dy * distance * height + abs(dx) * drift


def _lay_out(
    rng: random.Random, scene: VideoScene, width: int, height: int
) -> tuple[list[tuple[float, float, float]], tuple[float, float]]:
    """Return start and radius of each shape, and how far they move; they never touch one another or the border."""
    short = min(width, height)
    widest = {1: 0.28, 2: 0.22, 3: 0.19, 4: 0.17}[scene.count]
    while True:
        base, (travel_x, travel_y) = rng.uniform(0.135, widest) * short, _travel(rng, scene.move, width, height)
        placed: list[tuple[float, float, float]] = []
        for _ in range(40):
            radius = base * rng.uniform(0.88, 1.12)
            left, right = radius + max(0.0, -travel_x), width - radius - max(0.0, travel_x)
            top, bottom = radius + max(0.0, -travel_y), height - radius - max(0.0, travel_y)
            if left > right or top > bottom:
                break
            x, y = rng.uniform(left, right), rng.uniform(top, bottom)
            if all(math.hypot(x - a, y - b) > (radius + r) * 1.15 for a, b, r in placed):
                placed.append((x, y, radius))
            if len(placed) == scene.count:
                return placed, (travel_x, travel_y)


def _visible_spans(rng: random.Random, count: int) -> list[tuple[float, float]]:
    """Return first and last moment of each shape: in some videos shapes appear, in some they disappear, one stays."""
    kind = rng.random()
    if count == 1 or kind > 0.25:
        return [(0.0, 1.0)] * count
    others = range(count - 1)
    if kind < 0.15:
        return [(0.0, 1.0), *((rng.uniform(0.0, 0.5), 1.0) for _ in others)]
    return [(0.0, 1.0), *((0.0, rng.uniform(0.5, 1.0)) for _ in others)]


def _outline(shape: str, radius: float, angle: float) -> list[tuple[float, float]]:
    """Return the corners of a shape around the origin."""
    if shape == "square":
        corners = [(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)]
    else:
        corners = [(0.0, -1.0), (0.95, 0.8), (-0.95, 0.8)]
    cos, sin = math.cos(angle) * radius, math.sin(angle) * radius
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in corners]


def _draw_frame(
    canvas: Image.Image, scene: VideoScene, bodies: list[tuple[float, float, _Body]], front: Rgb, fine: int
) -> Image.Image:
    image = canvas.copy()
    draw = ImageDraw.Draw(image)
    for x, y, body in bodies:
        if scene.shape == "circle":
            r = body.radius
            draw.ellipse([(x - r) * fine, (y - r) * fine, (x + r) * fine, (y + r) * fine], fill=front)
        else:
            corners = _outline(scene.shape, body.radius, body.angle)
            draw.polygon([((x + dx) * fine, (y + dy) * fine) for dx, dy in corners], fill=front)
    return image.reduce(fine) if fine > 1 else image


def draw_video(
    rng: random.Random, scene: VideoScene, times: Sequence[float], size: tuple[int, int], augment: bool = False
) -> Video:
    """Draw the frames at `times`, shares of the video from 0 to 1.

    Args:
        size: width and height in pixels.
        augment: add coarse edges, shaded backgrounds, blur and noise, for training.
    """
    width, height = size
    fine = 1 if max(size) > 300 else rng.choice((1, 2, 3) if augment else (2, 3))  # supersampling
    front, back = sample_pair(rng, scene.colour, scene.background)
    placed, (travel_x, travel_y) = _lay_out(rng, scene, width, height)
    tilt, spread = rng.uniform(-0.2, 0.2), rng.choice((0.0, 0.1))
    bodies = [
        _Body(x, y, radius, tilt + rng.uniform(-spread, spread), *span)
        for (x, y, radius), span in zip(placed, _visible_spans(rng, scene.count), strict=True)
    ]
    speed_exponent = math.exp(rng.uniform(-0.3, 0.3)) if rng.random() < 0.3 else 1.0  # 1 is a constant speed
    canvas = Image.new("RGB", (width * fine, height * fine), back)
    tracks = np.zeros((scene.count, len(times), 3), np.float32)
    images = []
    for k, time in enumerate(times):
        progress = time**speed_exponent
        visible_bodies = []
        for n, body in enumerate(bodies):
            x, y = body.x + progress * travel_x, body.y + progress * travel_y
            visible = body.first <= time <= body.last
            tracks[n, k] = x / width, y / height, visible
            if visible:
                visible_bodies.append((x, y, body))
        images.append(_draw_frame(canvas, scene, visible_bodies, front, fine))
    frames = _degrade(rng, images) if augment else np.stack([np.asarray(image) for image in images])
    return Video(frames, tracks)


def _degrade(rng: random.Random, images: list[Image.Image]) -> Frames:
    """Return frames with random blur, a shaded or grainy background, and noise in every frame."""
    if rng.random() < 0.2:
        blur = ImageFilter.GaussianBlur(rng.uniform(0.2, 0.015 * min(images[0].size)))
        images = [image.filter(blur) for image in images]
    frames = np.stack([np.asarray(image) for image in images])
    if rng.random() < 0.6:
        return frames
    noise = np.random.default_rng(rng.getrandbits(32))
    degraded: NDArray[np.floating[Any]] = frames.astype(np.float32)
    _, height, width, _ = frames.shape
    if rng.random() < 0.5:
        across = np.linspace(-1, 1, width, dtype=np.float32)[:, None] * rng.uniform(-15, 15)
        degraded += across + np.linspace(-1, 1, height, dtype=np.float32)[:, None, None] * rng.uniform(-15, 15)
    if rng.random() < 0.5:
        degraded += noise.standard_normal((height, width, 1), np.float32) * rng.uniform(1, 8)
    if rng.random() < 0.5:
        degraded += noise.standard_normal(frames.shape, np.float32) * rng.uniform(1, 8)
    return degraded.clip(0, 255).astype(np.uint8)
