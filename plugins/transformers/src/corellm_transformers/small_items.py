"""Small items, by which processors and models are examined: others, and of other sizes, for each seed.

Knows media; knows no processor.
"""

from __future__ import annotations

from typing import Any

from PIL.Image import Image, Transpose

from corellm.multimodal import dummy_audios, dummy_images


def small_size(seed: int) -> tuple[int, int]:
    """Return the width and height of an image or a video."""
    return 90 + 37 * seed, 70 + 11 * seed


def small_image(seed: int = 0) -> Any:
    """Return an image."""
    width, height = small_size(seed)
    return dummy_images(1, width=width, height=height)[0]


def small_audio(sampling_rate: int, seed: int = 0) -> Any:
    """Return audio of about a second, `[num_samples]`."""
    return dummy_audios(1, num_samples=int((0.7 + 0.4 * seed) * sampling_rate))[0]


def turned(item: Any) -> Any:
    """Return another image or audio of the same size: upside down, or backwards."""
    return item.transpose(Transpose.ROTATE_180) if isinstance(item, Image) else item[::-1].copy()
