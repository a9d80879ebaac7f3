"""Lessons: training clips, drawn once and kept, and their mirror images.

Knows which clips training meets; nothing of tokens or of the model.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from demo.video.clips import ClipScene, Frames, draw_clip, sample_scene, sample_size
from demo.video.files import Codec, decode, encode
from demo.video.frames import resize, sampled
from demo.video.model import FRAMES, FRAMES_PER_PATCH

_OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up", "nowhere": "nowhere"}


@dataclass(frozen=True)
class Lesson:
    """A clip as the processor leaves it, the scene it shows, and where its shapes are."""

    frames: Frames  # [FRAMES or fewer, height, width, 3], sides multiples of PATCH * MERGE
    scene: ClipScene
    tracks: NDArray[np.float32]  # as in Clip
    picture: bool = False  # not a clip: one picture, which the processor takes as a pair of equal frames


def _recode(rng: random.Random, frames: Frames) -> Frames:
    """Through a codec and back. Only the frames that are sampled: what lies between them is never seen."""
    kind = rng.random()
    if kind < 0.5:
        return frames
    if kind < 0.75:
        codec = Codec("libx264", {"preset": "ultrafast", "crf": str(rng.randint(16, 34))})
    else:
        codec = Codec("mpeg4", {"qscale": str(rng.randint(2, 12))})
    return decode(encode(frames, 8, codec))


def _draw_clip(rng: random.Random) -> Lesson:
    scene = sample_scene(rng, "train")
    total = rng.choice((FRAMES, rng.randint(FRAMES, 30), rng.randint(20, 180)))
    if rng.random() < 0.05:
        total = rng.randint(2, FRAMES)
    times = [k / (total - 1) for k in sampled(total)]
    clip = draw_clip(rng, scene, times, sample_size(rng), rough=rng.random() < 0.75)
    return Lesson(resize(_recode(rng, clip.frames)), scene, clip.tracks)


def _draw_picture(rng: random.Random) -> Lesson:
    scene = sample_scene(rng, "train")
    while scene.move != "nowhere":
        scene = sample_scene(rng, "train")
    clip = draw_clip(rng, scene, [0.5], sample_size(rng), rough=rng.random() < 0.75)
    frame, tracks = resize(_recode(rng, clip.frames)), clip.tracks
    return Lesson(frame.repeat(FRAMES_PER_PATCH, 0), scene, tracks.repeat(FRAMES_PER_PATCH, 1), picture=True)


def _draw_share(seed: int, count: int) -> list[Lesson]:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    return [_draw_picture(rng) if rng.random() < 0.05 else _draw_clip(rng) for _ in range(count)]


def draw_lessons(seed: int, count: int, workers: int = 2, share: int = 500) -> list[Lesson]:
    """`count` training clips; the same for the same seed, however many workers draw them."""
    shares = [min(share, count - start) for start in range(0, count, share)]
    with ProcessPoolExecutor(workers) as pool:
        parts = pool.map(_draw_share, range(seed * 10_000, seed * 10_000 + len(shares)), shares)
        return [lesson for part in parts for lesson in part]


def mirrored(lesson: Lesson, across: bool, down: bool, back: bool) -> Lesson:
    """The clip mirrored from left to right, from top to bottom, or played backwards."""
    move = lesson.scene.move
    if back:
        move = _OPPOSITE[move]
    if (across and move in ("left", "right")) or (down and move in ("up", "down")):
        move = _OPPOSITE[move]
    frames = lesson.frames[:: -1 if back else 1, :: -1 if down else 1, :: -1 if across else 1]
    tracks = lesson.tracks[:, :: -1 if back else 1].copy()
    if across:
        tracks[..., 0] = 1 - tracks[..., 0]
    if down:
        tracks[..., 1] = 1 - tracks[..., 1]
    return replace(lesson, frames=frames, scene=replace(lesson.scene, move=move), tracks=tracks)
