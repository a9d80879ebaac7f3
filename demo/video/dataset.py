"""Training videos with labels, and their mirrored and reversed versions.

Knows which videos training draws; nothing of tokens or of the model.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from demo.video.files import Codec, decode, encode
from demo.video.frames import resize, sampled
from demo.video.model import FRAMES, FRAMES_PER_PATCH
from demo.video.moving_shapes import Frames, VideoScene, draw_video, sample_scene, sample_size

_OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up", "nowhere": "nowhere"}


@dataclass(frozen=True)
class Sample:
    """A video as the processor returns it, its scene, and the positions of its shapes."""

    frames: Frames  # [FRAMES or fewer, height, width, 3], sides multiples of PATCH * MERGE
    scene: VideoScene
    tracks: NDArray[np.float32]  # as in Video
    is_image: bool = False  # an image, which the processor takes as a pair of equal frames


def _recode(rng: random.Random, frames: Frames) -> Frames:
    """Return the frames after a random codec, or unchanged; only sampled frames are encoded."""
    kind = rng.random()
    if kind < 0.5:
        return frames
    if kind < 0.75:
        codec = Codec("libx264", {"preset": "ultrafast", "crf": str(rng.randint(16, 34))})
    else:
        codec = Codec("mpeg4", {"qscale": str(rng.randint(2, 12))})
    return decode(encode(frames, 8, codec))


def _draw_video(rng: random.Random) -> Sample:
    scene = sample_scene(rng, "train")
    total = rng.choice((FRAMES, rng.randint(FRAMES, 30), rng.randint(20, 180)))
    if rng.random() < 0.05:
        total = rng.randint(2, FRAMES)
    times = [k / (total - 1) for k in sampled(total)]
    video = draw_video(rng, scene, times, sample_size(rng), augment=rng.random() < 0.75)
    return Sample(resize(_recode(rng, video.frames)), scene, video.tracks)


def _draw_image(rng: random.Random) -> Sample:
    scene = sample_scene(rng, "train")
    while scene.move != "nowhere":
        scene = sample_scene(rng, "train")
    video = draw_video(rng, scene, [0.5], sample_size(rng), augment=rng.random() < 0.75)
    frame, tracks = resize(_recode(rng, video.frames)), video.tracks
    return Sample(frame.repeat(FRAMES_PER_PATCH, 0), scene, tracks.repeat(FRAMES_PER_PATCH, 1), is_image=True)


def _draw_shard(seed: int, size: int) -> list[Sample]:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    return [_draw_image(rng) if rng.random() < 0.05 else _draw_video(rng) for _ in range(size)]


def draw_dataset(seed: int, size: int, workers: int = 2, shard_size: int = 500) -> list[Sample]:
    """Return `size` training videos; the same seed gives the same videos, whatever the number of workers."""
    sizes = [min(shard_size, size - start) for start in range(0, size, shard_size)]
    with ProcessPoolExecutor(workers) as pool:
        shards = pool.map(_draw_shard, range(seed * 10_000, seed * 10_000 + len(sizes)), sizes)
        return [sample for shard in shards for sample in shard]


def flip(sample: Sample, horizontal: bool, vertical: bool, backwards: bool) -> Sample:
    """Return the video mirrored from left to right, from top to bottom, or played backwards."""
    move = sample.scene.move
    if backwards:
        move = _OPPOSITE[move]
    if (horizontal and move in ("left", "right")) or (vertical and move in ("up", "down")):
        move = _OPPOSITE[move]
    frames = sample.frames[:: -1 if backwards else 1, :: -1 if vertical else 1, :: -1 if horizontal else 1]
    tracks = sample.tracks[:, :: -1 if backwards else 1].copy()
    if horizontal:
        tracks[..., 0] = 1 - tracks[..., 0]
    if vertical:
        tracks[..., 1] = 1 - tracks[..., 1]
    return replace(sample, frames=frames, scene=replace(sample.scene, move=move), tracks=tracks)
