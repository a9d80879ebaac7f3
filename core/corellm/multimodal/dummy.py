"""Media for `get_dummy_mm_data`: of a given size, with content that no shortcut can compress away."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def dummy_images(count: int, *, width: int, height: int) -> list[Image]:
    """Make `count` RGB pictures of `width` x `height` pixels: a diagonal gradient."""
    from PIL import Image as images

    ramp = images.linear_gradient("L").resize((width, height))
    picture = images.merge("RGB", (ramp, ramp.transpose(images.Transpose.FLIP_TOP_BOTTOM), ramp))
    return [picture.copy() for _ in range(count)]
