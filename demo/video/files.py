"""Video files, written and read with PyAV. Knows frames, frame rates and codecs; nothing of scenes."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from av.video.stream import VideoStream

from demo.video.moving_shapes import Frames


@dataclass(frozen=True)
class Codec:
    name: str
    options: dict[str, str] = field(default_factory=dict)


def encode(frames: Frames, fps: Fraction | int, codec: Codec) -> bytes:
    """Return an mp4 file of these frames. frames: [num_frames, height, width, 3], with even sides"""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream(codec.name, rate=fps, options=codec.options)
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def decode(data: bytes) -> Frames:
    """Return all frames of a video file."""
    with av.open(io.BytesIO(data), "r") as container:
        frames: Frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return frames
