"""One decoded frame to upright RGB. Knows pixels and orientation, not streams."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from av.sidedata.sidedata import SideData
    from av.video.frame import VideoFrame


class Orientation:
    """Orientation of frames in the file: a multiple of 90 degrees, perhaps mirrored.

    The display matrix maps `(x, y)` as stored to `(a x + c y, b x + d y)` as shown; other angles are rounded.

    Attributes:
        transposes: whether width and height change places.
    """

    def __init__(self, frame: VideoFrame) -> None:
        a, b, c, d = _display_matrix(frame)
        self.transposes = abs(b) > abs(a)
        self._mirrors = (c < 0, b < 0) if self.transposes else (a < 0, d < 0)  # x, y as shown

    def apply(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A view of `[height, width, channels]` as shown."""
        if self.transposes:
            pixels = pixels.transpose(1, 0, 2)
        mirror_x, mirror_y = self._mirrors
        return pixels[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1]


def _display_matrix(frame: VideoFrame) -> tuple[float, float, float, float]:
    try:
        matrix = cast("SideData | None", frame.side_data.get("DISPLAYMATRIX"))
    except ValueError:  # PyAV cannot list side data of an unknown kind (EXIF), but still finds the angle
        angle = math.radians(frame.rotation)
        return math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
    if matrix is None:
        return 1, 0, 0, 1
    a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
    return a, b, c, d


def to_rgb(frame: VideoFrame, width: int, height: int) -> np.ndarray[Any, Any]:
    """The pixels `[height, width, 3]`, uint8, with transparency as white. May share FFmpeg's memory."""
    if not any(component.is_alpha for component in frame.format.components):
        return frame.reformat(width, height, "rgb24", threads=1).to_ndarray()
    pixels = frame.reformat(width, height, "rgba", threads=1).to_ndarray()
    opacity = pixels[..., 3:].astype(np.uint16)
    # rounded to nearest: the sum is at most 255 * 255
    return ((pixels[..., :3] * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)
