"""Images to try a script with: drawn from their name, not published photographs. Nothing is downloaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from corellm.errors import InvalidParameterError
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.table import takes
from corellm_vllm.assets.base import check_name, generator, written


class ImageAsset:
    """A drawn image: the same for the same name.

    Args:
        name: any.
    """

    @takes({})
    def __init__(self, name: str) -> None:
        self.name = check_name("an image", name)

    @property
    def pil_image(self) -> Image.Image:
        """The image: a polygon on a plain ground."""
        numbers = generator(self.name)
        ground, colour = (tuple(int(value) for value in numbers.integers(0, 256, 3)) for _ in range(2))
        image = Image.new("RGB", (320, 240), ground)
        sides = int(numbers.integers(3, 9))
        ImageDraw.Draw(image).regular_polygon((160, 120, 90), sides, fill=colour, outline="white")
        return image

    def pil_image_ext(self, ext: str = "png") -> Image.Image:
        """The image, as a file of a kind gives it back."""
        return Image.open(io.BytesIO(self.read_bytes(ext))).convert("RGB")

    def read_bytes(self, ext: str = "png") -> bytes:
        """The image's file.

        Raises:
            InvalidParameterError: an unknown kind of file.
        """
        file, kind = io.BytesIO(), {"jpg": "jpeg"}.get(ext, ext)
        try:
            self.pil_image.save(file, kind)
        except (KeyError, OSError, ValueError) as error:
            raise InvalidParameterError(f"no image can be written as {ext!r:.40}", param="ext") from error
        return file.getvalue()

    def get_path(self, ext: str = "png") -> Path:
        """The path of its file."""
        return written(f"{self.name}.{ext}", self.read_bytes(ext))

    @property
    def pixel_values(self) -> Any:
        """Refused: the model's processor makes them.

        Raises:
            InvalidParameterError: always.
        """
        raise InvalidParameterError("pixel_values are made by the model's processor; use pil_image")

    @property
    def image_embeds(self) -> Any:
        """Refused: they belong to one published model.

        Raises:
            InvalidParameterError: always.
        """
        raise InvalidParameterError("image_embeds belong to one published model; use pil_image, or embeddings of yours")


__all__ = ["ImageAsset"]
__getattr__ = exports(__name__)
