"""Dummy media for `get_dummy_mm_data`: of a given size, with content that does not compress to nothing.

`bounds` is an entry of the hook's `mm_options`: the sizes for which the operator plans memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


def dummy_images(count: int, *, width: int, height: int, bounds: Mapping[str, int] | None = None) -> list[Image]:
    """Return `count` RGB images of `width` x `height` pixels: a diagonal gradient.

    Args:
        count: how many.
        width, height: sides of the largest image.
        bounds: smaller `width` and `height`.
    """
    from PIL import Image as images

    bounds = bounds or {}
    size = min(width, bounds.get("width", width)), min(height, bounds.get("height", height))
    ramp = images.linear_gradient("L").resize(size)
    image = images.merge("RGB", (ramp, ramp.transpose(images.Transpose.FLIP_TOP_BOTTOM), ramp))
    return [image.copy() for _ in range(count)]


def dummy_videos(
    count: int, *, width: int, height: int, num_frames: int, bounds: Mapping[str, int] | None = None
) -> list[np.ndarray[Any, Any]]:
    """Return `count` videos `[num_frames, height, width, 3]`, uint8: a gradient that moves down.

    Args:
        count: how many.
        width, height, num_frames: of the largest video.
        bounds: smaller `width`, `height` and `num_frames`.
    """
    import numpy as np

    (image,) = dummy_images(1, width=width, height=height, bounds=bounds)
    num_frames = min(num_frames, (bounds or {}).get("num_frames", num_frames))
    frames = np.stack([np.roll(np.asarray(image), shift, axis=0) for shift in range(num_frames)])
    return [frames.copy() for _ in range(count)]


def dummy_audios(
    count: int, *, num_samples: int, bounds: Mapping[str, int] | None = None
) -> list[np.ndarray[Any, Any]]:
    """Return `count` audio items of `num_samples` samples at the model's rate: a rising tone.

    Args:
        count: how many.
        num_samples: length of the longest audio.
        bounds: a smaller `length`, in samples.
    """
    import numpy as np

    num_samples = min(num_samples, (bounds or {}).get("length", num_samples))
    time = np.linspace(0, 1, num_samples, dtype=np.float64)
    tone = (0.5 * np.sin(np.pi / 2 * num_samples * time**2)).astype(np.float32)
    return [tone.copy() for _ in range(count)]
