"""Videos to try a script with: a square that moves, drawn from a name. Nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from corellm.errors import InvalidParameterError
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.table import takes
from corellm_vllm.assets.audio import AudioAsset
from corellm_vllm.assets.base import check_name, generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FPS = 8
_ALL = 32
"""Frames of a video of which all are wanted."""


class VideoAsset:
    """A drawn video: the same for the same name.

    Args:
        name: any.
        num_frames: how many; -1 for four seconds.
        fps: -1 for eight a second.
    """

    @takes({})
    def __init__(self, name: str, num_frames: int = -1, fps: int = -1) -> None:
        self.name, self.num_frames, self.fps = check_name("a video", name), num_frames, fps
        if not isinstance(num_frames, int) or num_frames == 0 or num_frames < -1:
            raise InvalidParameterError(f"num_frames must be 1 or more, or -1, got {num_frames!r}", param="num_frames")

    @property
    def np_ndarrays(self) -> NDArray[np.uint8]:
        """The frames, `[frames, height, width, 3]`."""
        count = _ALL if self.num_frames == -1 else self.num_frames
        numbers = generator(self.name)
        ground, colour = (numbers.integers(0, 256, 3, dtype=np.uint8) for _ in range(2))
        frames = np.broadcast_to(ground, (count, 96, 128, 3)).copy()
        for index, left in enumerate(np.linspace(0, 96, count).astype(int)):
            frames[index, 32:64, left : left + 32] = colour
        return frames

    @property
    def pil_images(self) -> list[Image.Image]:
        """The frames as images."""
        return [Image.fromarray(frame) for frame in self.np_ndarrays]

    @property
    def metadata(self) -> dict[str, Any]:
        """How fast the frames follow each other, and how long they last."""
        count, fps = len(self.np_ndarrays), _FPS if self.fps == -1 else self.fps
        return {
            "fps": float(fps), "duration": count / fps, "total_num_frames": count, "frames_indices": [*range(count)],
            "video_backend": "drawn", "do_sample_frames": False,
        }  # fmt: skip

    def get_audio(self, sampling_rate: float | None = None) -> NDArray[np.float32]:
        """Its sound, at a rate; 16 kHz if None."""
        return AudioAsset(self.name, rate=int(sampling_rate or 16_000)).audio_and_sample_rate[0]


__all__ = ["VideoAsset"]
__getattr__ = exports(__name__)
