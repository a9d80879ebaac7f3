"""Media for `get_dummy_mm_data`: of a given size, with content that no shortcut can compress away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


def dummy_images(count: int, *, width: int, height: int) -> list[Image]:
    """Make `count` RGB pictures of `width` x `height` pixels: a diagonal gradient."""
    from PIL import Image as images

    ramp = images.linear_gradient("L").resize((width, height))
    picture = images.merge("RGB", (ramp, ramp.transpose(images.Transpose.FLIP_TOP_BOTTOM), ramp))
    return [picture.copy() for _ in range(count)]


def dummy_videos(count: int, *, width: int, height: int, num_frames: int) -> list[np.ndarray[Any, Any]]:
    """Make `count` videos `[num_frames, height, width, 3]`, uint8: a gradient that moves down."""
    import numpy as np

    (picture,) = dummy_images(1, width=width, height=height)
    frames = np.stack([np.roll(np.asarray(picture), shift, axis=0) for shift in range(num_frames)])
    return [frames.copy() for _ in range(count)]


def dummy_audios(count: int, *, num_samples: int) -> list[np.ndarray[Any, Any]]:
    """Make `count` sounds of `num_samples` samples at the model's rate: a tone that rises all the time."""
    import numpy as np

    time = np.linspace(0, 1, num_samples, dtype=np.float64)
    sound = (0.5 * np.sin(np.pi / 2 * num_samples * time**2)).astype(np.float32)
    return [sound.copy() for _ in range(count)]
