"""Images and prompts as InternVL takes them, with the call signature of a Hugging Face processor.

An image is resized to a grid of square tiles, as many columns and rows as its shape is closest to, and cut; beside
several tiles stands a small one of the whole image. In the prompt it is `<img>`, `<IMG_CONTEXT>` for each embedding of
each tile, `</img>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from PIL import Image

from corellm.errors import ProcessorKwargsError
from corellm_internvl.tokenizer import IMAGE, IMAGE_CONTEXT, IMAGE_END, IMAGE_START

_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)[:, None, None]
_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)[:, None, None]
_MOST_TILES = 1024
"""Beyond any published: all grids up to it are looked at."""

Pixels = np.ndarray[Any, np.dtype[np.float32]]


class TilingKwargs(TypedDict, total=False):
    """Arguments of a request, with the names and meanings of `config.json`."""

    dynamic_image_size: bool
    """Whether images become several tiles."""
    max_dynamic_patch: int
    """Most tiles of an image, without the small one of all of it."""
    min_dynamic_patch: int
    """Fewest."""
    use_thumbnail: bool
    """Whether a small image of all of it follows several tiles."""


class Tiler:
    """Cuts images into tiles.

    Args:
        config: the result of `load_config`.
        max_tiles: given at start; None for the configuration's. Images of more tiles are refused before they are cut.

    Raises:
        ProcessorKwargsError: its numbers of tiles are impossible.
    """

    valid_kwargs = TilingKwargs

    def __init__(self, config: Any, max_tiles: int | None = None) -> None:
        self._max_tiles = max(_count("max_dynamic_patch", n) for n in (config.max_dynamic_patch, max_tiles or 1))
        self.tile_size: int = config.tile_size
        self.dynamic_image_size: bool = config.dynamic_image_size
        self.max_dynamic_patch: int = config.max_dynamic_patch
        self.min_dynamic_patch: int = config.min_dynamic_patch
        self.use_thumbnail: bool = config.use_thumbnail
        self.grids()

    def __call__(self, image: Image.Image, **kwargs: Any) -> Pixels:
        """Return an image's tiles, row by row, normalized: `[tiles, 3, tile_size, tile_size]`.

        Raises:
            ProcessorKwargsError: the numbers of tiles are impossible, or above those planned.
        """
        columns, rows = self.grid(*image.size, **kwargs)
        if columns * rows > self._max_tiles:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: with {kwargs} an image of {image.width} x {image.height} becomes "
                f"{columns * rows} tiles, more than {self._max_tiles}, for which memory was planned at start; start "
                f"with LLM(..., mm_processor_kwargs={{'max_dynamic_patch': {columns * rows}}}) for more"
            )
        tiles = self._cut(image, columns, rows)
        if len(tiles) > 1 and kwargs.get("use_thumbnail", self.use_thumbnail):
            tiles = np.concatenate([tiles, self._cut(image, 1, 1)])
        return tiles

    def grids(self, **kwargs: Any) -> list[tuple[int, int]]:
        """Return all grids `(columns, rows)` that images may become, those of fewest tiles first.

        Raises:
            ProcessorKwargsError: the numbers of tiles are out of range, or no grid is between them.
        """
        if not kwargs.get("dynamic_image_size", self.dynamic_image_size):
            return [(1, 1)]
        fewest = _count("min_dynamic_patch", kwargs.get("min_dynamic_patch", self.min_dynamic_patch))
        most = _count("max_dynamic_patch", kwargs.get("max_dynamic_patch", self.max_dynamic_patch))
        if fewest > most:
            raise ProcessorKwargsError(
                f"min_dynamic_patch={fewest} is above max_dynamic_patch={most}; lower the former"
            )
        return sorted(_grids(fewest, most), key=lambda grid: grid[0] * grid[1])

    def grid(self, width: int, height: int, **kwargs: Any) -> tuple[int, int]:
        """Return the columns and rows whose ratio is closest to an image's.

        Of the grids of one ratio it is the largest that has less than twice the image's pixels.
        """
        best, smallest = (1, 1), float("inf")
        for columns, rows in self.grids(**kwargs):
            difference = abs(width / height - columns / rows)
            fills = width * height > 0.5 * self.tile_size**2 * columns * rows
            if difference < smallest or (difference == smallest and fills):
                best, smallest = (columns, rows), difference
        return best

    def _cut(self, image: Image.Image, columns: int, rows: int) -> Pixels:
        size = self.tile_size
        resized = image.convert("RGB").resize((columns * size, rows * size), Image.Resampling.BICUBIC)
        pixels = np.asarray(resized).transpose(2, 0, 1).astype(np.float32, order="C")
        pixels /= np.float32(255)
        pixels -= _MEAN
        pixels /= _STD
        grid = pixels.reshape(3, rows, size, columns, size).transpose(1, 3, 0, 2, 4)
        return grid.reshape(rows * columns, 3, size, size)


class _Declared(TypedDict, total=False):
    images_kwargs: TilingKwargs


class InternVLChatProcessor:
    """Tokenizes prompts, cuts images, lays them out.

    Args:
        tokenizer: the result of `load_tokenizer`.
        config: the result of `load_config`.
        max_tiles: as `Tiler`'s.
    """

    valid_processor_kwargs = _Declared

    def __init__(self, tokenizer: Any, config: Any, max_tiles: int | None = None) -> None:
        self.tokenizer, self.image_processor = tokenizer, Tiler(config, max_tiles)
        self.image_seq_length: int = config.image_seq_length
        self.image_token_id, self.context_token_id, self._start, self._end = tokenizer.convert_tokens_to_ids(
            [IMAGE, IMAGE_CONTEXT, IMAGE_START, IMAGE_END]
        )

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        images: Image.Image | Sequence[Image.Image] | None = None,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> Mapping[str, Any]:
        """Process prompts and the images they name, in order.

        Args:
            text: with an `<image>` for each image.
            images: in the order of their placeholders.
            return_tensors: `"pt"` for torch.
            **kwargs: `TilingKwargs`.

        Returns:
            A `BatchFeature`: `input_ids` and `attention_mask` `[prompts, tokens]` with the images laid out;
            `pixel_values` `[tiles of all images, 3, side, side]`; `num_tiles` `[images]`.

        Raises:
            ValueError: the prompts name another number of images.
            ProcessorKwargsError: the numbers of tiles are impossible.
        """
        from transformers import BatchFeature

        data: dict[str, Any] = {}
        images = [images] if isinstance(images, Image.Image) else list(images or ())
        tiles = [self.image_processor(image, **kwargs) for image in images]
        if text is not None:
            prompts = self.tokenizer([text] if isinstance(text, str) else [*text])["input_ids"]
            named = sum(prompt.count(self.image_token_id) for prompt in prompts)
            if named != len(images):
                raise ValueError(f"the text names {named} images, {len(images)} were given")
            waiting = iter(tiles)
            data["input_ids"] = [[*self._laid_out(prompt, waiting)] for prompt in prompts]
            data["attention_mask"] = [[1] * len(prompt) for prompt in data["input_ids"]]
        if images:
            data["pixel_values"] = np.concatenate(tiles)
            data["num_tiles"] = np.array([len(own) for own in tiles])
        return BatchFeature(data, tensor_type=return_tensors)  # type: ignore[no-any-return]

    def layout(self, num_embeddings: int) -> list[int]:
        """The tokens of one image; `<IMG_CONTEXT>` are those that take embeddings."""
        return [self._start, *[self.context_token_id] * num_embeddings, self._end]

    def _laid_out(self, prompt: Sequence[int], tiles: Iterator[Pixels]) -> Iterator[int]:
        for token in prompt:
            if token == self.image_token_id:
                yield from self.layout(len(next(tiles)) * self.image_seq_length)
            else:
                yield token


def _grids(fewest: int, most: int) -> Iterator[tuple[int, int]]:
    for columns in range(1, most + 1):
        for rows in range(1, most // columns + 1):
            if columns * rows >= fewest:
                yield columns, rows


def _count(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_TILES:
        return value
    raise ProcessorKwargsError(f"{name} must be a whole number from 1 to {_MOST_TILES}; got {value!r:.80}")
