"""Images of another mode or size."""

from __future__ import annotations

from PIL import Image

from corellm_vllm.absent.exports import exports


def convert_image_mode(image: Image.Image, to_mode: str) -> Image.Image:
    """Return an image in another mode."""
    return image if image.mode == to_mode else image.convert(to_mode)


def rescale_image_size(image: Image.Image, size_factor: float, transpose: int = -1) -> Image.Image:
    """Return an image with its width and height times a factor; `transpose` is one of Pillow's ways to turn it."""
    width, height = (max(1, int(side * size_factor)) for side in image.size)
    scaled = image.resize((width, height))
    return scaled if transpose < 0 else scaled.transpose(Image.Transpose(transpose))


__all__ = ["convert_image_mode", "rescale_image_size"]
__getattr__ = exports(__name__)
