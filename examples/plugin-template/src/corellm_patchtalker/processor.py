"""Images and prompts as PatchTalker takes them, with the call signature of a Hugging Face processor.

An image is halved until it has no more than `max_patches`, stretched to whole patches, and cut. Knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from corellm.errors import ProcessorKwargsError
from PIL import Image

Pixels = np.ndarray[Any, np.dtype[np.float32]]


class PatchTalkerProcessor:
    """Tokenizes a prompt, cuts images and lays them out in the prompt.

    Args:
        tokenizer: of the checkpoint.
        patch_size: side of a patch in pixels.
        max_patches: of one image; a request may ask for fewer, but not for more than memory is planned for.
    """

    image_token = "<image>"
    row_token = "<row>"

    def __init__(self, tokenizer: Any, patch_size: int, max_patches: int) -> None:
        self.tokenizer = tokenizer
        self.patch_size = patch_size
        self.max_patches = _checked(max_patches, None)
        self.image_token_id, self._row_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.row_token])

    def __call__(
        self,
        text: str | None = None,
        images: Image.Image | Sequence[Image.Image] | None = None,
        return_tensors: str | None = None,
        *,
        max_patches: int | None = None,
    ) -> Mapping[str, Any]:
        """Process a prompt and its images.

        Args:
            text: with an `<image>` for each image.
            images: in the order of their placeholders.
            return_tensors: `"pt"` for torch.
            max_patches: of an image; None for the constructor's.

        Returns:
            A `BatchFeature`: `input_ids` and `attention_mask` `[1, tokens]` with the images laid out, `patches`
            `[patches of all images, 3 * patch_size ** 2]`, `grids` `[images, 2]`, rows and columns.

        Raises:
            ProcessorKwargsError: `max_patches` is no integer in the allowed range.
            ValueError: the text has another number of placeholders.
        """
        from transformers import BatchFeature

        most = self.max_patches if max_patches is None else _checked(max_patches, self.max_patches)
        images = [images] if isinstance(images, Image.Image) else list(images or ())
        grids = [self._grid(image.size, most) for image in images]
        data: dict[str, Any] = {}
        if text is not None:
            ids = self._lay_out(self.tokenizer(text)["input_ids"], grids)
            data = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
        if images:
            cut = [self._cut(image, *grid) for image, grid in zip(images, grids, strict=True)]
            data |= {"patches": np.concatenate(cut), "grids": np.array(grids)}
        return BatchFeature(data, tensor_type=return_tensors)  # type: ignore[no-any-return]

    def layout(self, rows: int, columns: int) -> list[int]:
        """The tokens of one image."""
        return [*[self.image_token_id] * columns, self._row_token_id] * rows

    def _lay_out(self, token_ids: Sequence[int], grids: Sequence[tuple[int, int]]) -> list[int]:
        named = list(token_ids).count(self.image_token_id)
        if named != len(grids):
            raise ValueError(f"the text has {named} {self.image_token}, {len(grids)} images were given")
        waiting = iter(grids)
        return [
            token
            for given in token_ids
            for token in (self.layout(*next(waiting)) if given == self.image_token_id else [given])
        ]

    def _grid(self, size: tuple[int, int], most: int) -> tuple[int, int]:
        """Rows and columns of an image of this width and height."""
        patch = self.patch_size
        while True:
            columns, rows = (-(-side // patch) for side in size)  # rounded up
            if rows * columns <= most:
                return rows, columns
            patch *= 2  # the same as half the image's size

    def _cut(self, image: Image.Image, rows: int, columns: int) -> Pixels:
        """Patches row by row, `[rows * columns, 3 * patch * patch]`, colours first, from -1 to 1."""
        patch = self.patch_size
        resized = image.convert("RGB").resize((columns * patch, rows * patch), Image.Resampling.BICUBIC)
        pixels = np.asarray(resized, dtype=np.float32) / np.float32(127.5) - np.float32(1)
        grid = pixels.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
        return grid.reshape(rows * columns, -1)


def _checked(asked: Any, most: int | None) -> int:
    """Return a requested number of patches, if it is from 1 to `most`."""
    if isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= (most or asked):
        return asked
    wanted = "at least 1" if most is None else f"from 1 to {most}, for which memory was planned at start"
    raise ProcessorKwargsError(
        f"mm_processor_kwargs: max_patches must be a whole number {wanted}; got {asked!r:.80}", expected=most, got=asked
    )
