"""Videos for the tests: encoded with PyAV, every frame known by its colour; what PyAV itself decodes of one; and what
reading one takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np

WIDTH, HEIGHT = 64, 48


def colour(number: int) -> tuple[int, int, int]:
    """The colour of frame `number`: no two neighbours are alike."""
    return number * 37 % 256, number * 91 % 256, number * 53 % 256


def plain(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray[Any, Any]:
    """A frame all of one colour."""
    return np.full((height, width, 3), colour(number), np.uint8)


def moving(number: int) -> np.ndarray[Any, Any]:
    """A frame that codecs predict from others: noise that moves, and changes its colour."""
    noise = np.random.default_rng(0).integers(0, 128, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    return np.roll(noise, number, axis=1) + np.array(colour(number), np.uint8) // 2


@contextmanager
def _priority_kept() -> Iterator[None]:
    """SVT-AV1 gives the thread that calls it real-time priority, where it may, and leaves it at that; whatever runs
    later would starve everything else on the machine.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def encode(
    frames: Sequence[np.ndarray[Any, Any]],
    codec: str = "libx264",
    container: str = "mp4",
    *,
    rate: int = 25,
    pixels: str = "yuv420p",
    milliseconds: Sequence[int] | None = None,
    first_pts: int = 0,
    group: int | None = None,
    matrix: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> bytes:
    """A file of `frames`, `rate` to the second or at the times given.

    Args:
        first_pts: shift of every packet, in 1/12800 s; what is negative, MP4 cuts away by an edit list.
        group: frames from one key frame to the next.
        matrix: display matrix, by which viewers turn the frames.
    """
    buffer = BytesIO()
    with _priority_kept(), av.open(buffer, "w", container, container_options=container_options) as output:
        stream: Any = output.add_stream(codec, rate, options=options or {})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixels
        stream.gop_size = group or stream.gop_size
        if milliseconds:
            stream.codec_context.time_base = Fraction(1, 1000)
        if matrix:
            stream.set_display_matrix(matrix)
        packets = []
        for number, pixels_of_frame in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels_of_frame).reformat(format=pixels)
            if milliseconds:
                frame.pts, frame.time_base = milliseconds[number], Fraction(1, 1000)
            packets += stream.encode(frame)
        for packet in [*packets, *stream.encode(None)]:
            if first_pts:
                shift = Fraction(first_pts, 12800) / packet.time_base
                packet.pts += int(shift)
                packet.dts += int(shift)
            output.mux(packet)
    return buffer.getvalue()


def decode(data: bytes) -> dict[int, np.ndarray[Any, Any]]:
    """`{presentation time in ticks: pixels}` of all frames, decoded from start to end by PyAV alone."""
    with av.open(BytesIO(data), "r") as container:
        return {
            frame.pts: frame.to_ndarray(format="rgb24") for frame in container.decode(video=0) if frame.pts is not None
        }


def same_colour(pixels: np.ndarray[Any, Any], number: int) -> bool:
    """Whether a decoded frame is `plain(number)`, up to what lossy codecs make of it."""
    return bool(np.abs(pixels.reshape(-1, 3).mean(0) - colour(number)).max() < 8)


class Measured(NamedTuple):
    """What came of reading a video."""

    error: str
    """Its type, empty if there was none."""
    message: str
    frames: int
    kilobytes: int
    """By which it raised the most memory that its process ever held."""


_MEASURE = """
import json, os, subprocess, sys
from pathlib import Path
from corellm.config import MultiModalConfig
from corellm.errors import MediaError
from corellm.media.pool import MediaPool
from corellm_media.video import container, gif
from corellm_media.video.files import load_video
def peak():
    status = [Path('/proc/self/status')]
    if pool:
        children = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(os.getpid()), 'h'], capture_output=True, text=True)
        status += [Path('/proc', child, 'status') for child in children.stdout.split()]
    lines = [line for path in status if path.exists() for line in path.read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith('VmHWM'))
limits = MultiModalConfig(**json.loads(sys.argv[2]))
pool = MediaPool(1, 300.0, "corellm_media.worker") if sys.argv[3] == 'pooled' else None
for path in sys.argv[4:]:
    before, frames, error = peak(), 0, None
    try:
        for _ in load_video(path, limits, pool).read(json.loads(sys.argv[1])):
            frames += 1
    except MediaError as caught:
        error = caught
    print(json.dumps([type(error).__name__ if error else '', str(error), frames, peak() - before]))
"""


def measure(
    videos: Mapping[str, bytes],
    folder: Path,
    indices: Iterable[int] | None = None,
    *,
    pooled: bool = False,
    **limits: int,
) -> dict[str, Measured]:
    """Read frames of each video in a fresh process; for Linux, which reports the most memory that it held.

    Args:
        videos: `{name: file}`.
        folder: for the files.
        indices: of the frames; None for all.
        pooled: decode in a child process, whose memory counts, too.
        limits: by name.

    A child's `ru_maxrss` would not do: it begins with what the parent held.
    """
    for number, data in enumerate(videos.values()):
        (folder / str(number)).write_bytes(data)
    chosen = "null" if indices is None else json.dumps(list(indices))
    paths = [str(folder / str(number)) for number in range(len(videos))]
    command = [sys.executable, "-c", _MEASURE, chosen, json.dumps(limits), "pooled" if pooled else "", *paths]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.splitlines()
    return {name: Measured(*json.loads(line)) for name, line in zip(videos, lines, strict=True)}
