"""Images and prompts as DeepSeek-VL2 takes them, with the call signature of a Hugging Face processor.

An image becomes views of one size: first all of it, then tiles, row by row, of the image fitted into one of the
candidate resolutions. What is left of a view has the mean colour. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from corellm.errors import MediaError, ProcessorKwargsError
from corellm_deepseek_vl2.config import check_candidates
from corellm_deepseek_vl2.tokenizer import image_token

Pixels = np.ndarray[Any, np.dtype[np.float32]]
Size = tuple[int, int]
"""Width and height."""


def make_processor(path: Path, tokenizer: Any, config: Any) -> DeepseekVLV2Processor:
    """Make the processor of `processor_config.json`; what that does not state is of `config.json`.

    Raises:
        CheckpointError: its resolutions are not made of tiles of the tower's size.
    """
    file = path / "processor_config.json"
    stated = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    side, candidates = config.vision_config["image_size"], stated.get("candidate_resolutions")
    if candidates is not None:
        check_candidates(candidates, side, str(file))
    return DeepseekVLV2Processor(
        tokenizer,
        image_token(path),
        side,
        config.tokens_per_side,
        candidates or config.candidate_resolutions,
        mean=stated.get("image_mean", [0.5] * 3),
        std=stated.get("image_std", [0.5] * 3) if stated.get("normalize", True) else None,
    )


class DeepseekVLV2Processor:
    """Tokenizes a prompt, cuts images into views and lays them out in the prompt.

    Args:
        tokenizer: of the checkpoint.
        image_token: stands for an image in a prompt, and for each of its embeddings.
        side: of a view, in pixels.
        tokens_per_side: rows and columns of embeddings of one view.
        candidates: widths and heights that images are fitted into.
        mean, std: of the three colours; pixels are not normalized without `std`.
    """

    def __init__(
        self,
        tokenizer: Any,
        image_token: str,
        side: int,
        tokens_per_side: int,
        candidates: Sequence[Sequence[int]],
        *,
        mean: Sequence[float],
        std: Sequence[float] | None,
    ) -> None:
        self.tokenizer, self.image_token = tokenizer, image_token
        self.image_token_id: int = tokenizer.convert_tokens_to_ids(image_token)
        self.side, self.tokens_per_side = side, tokens_per_side
        self.candidates: list[Size] = [(width, height) for width, height in candidates]
        self._mean: Pixels = np.array(mean, np.float32)[:, None, None]
        self._std: Pixels | None = None if std is None else np.array(std, np.float32)[:, None, None]
        self._colour = tuple(int(value * 255) for value in mean)

    def __call__(
        self,
        text: str | None = None,
        images: Image.Image | Sequence[Image.Image] | None = None,
        return_tensors: str | None = None,
        *,
        cropping: bool = True,
    ) -> Mapping[str, Any]:
        """Process a prompt and its images.

        Args:
            text: with an image token for each image.
            images: in the order of their tokens.
            return_tensors: `"pt"` for torch.
            cropping: whether to choose among the resolutions by an image's size; else an image has a single tile.

        Returns:
            A `BatchFeature`: `input_ids` and `attention_mask` `[1, tokens]` with the images laid out, `pixel_values`
            `[views of all images, 3, side, side]`, `images_spatial_crop` `[images, 2]`, tiles across and down.

        Raises:
            ProcessorKwargsError: `cropping` is no boolean.
            MediaError: an image is so long that nothing is left of its other side.
            ValueError: the text has another number of image tokens.
        """
        from transformers import BatchFeature

        images = [images] if isinstance(images, Image.Image) else list(images or ())
        grids = [self.grid(image.size, cropping=cropping) for image in images]
        data: dict[str, Any] = {}
        if text is not None:
            ids = self._lay_out(self.tokenizer(text)["input_ids"], grids)
            data = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
        if images:
            views = [view for image, grid in zip(images, grids, strict=True) for view in self._views(image, *grid)]
            data |= {"pixel_values": np.stack(views), "images_spatial_crop": np.array(grids)}
        return BatchFeature(data, tensor_type=return_tensors)  # type: ignore[no-any-return]

    def num_tokens(self, columns: int, rows: int) -> int:
        """Embeddings of an image with so many tiles: rows of both views, each with an end, and a divider between."""
        size = self.tokens_per_side
        return size * (size + 1) + 1 + rows * size * (columns * size + 1)

    def takes(self, size: Size) -> bool:
        """Whether something is left of both sides of an image fitted into a view."""
        return round(min(size) / max(size) * self.side) > 0  # as ImageOps.pad rounds

    def grid(self, size: Size, *, cropping: bool = True) -> Size:
        """Tiles across and down: of the resolution that keeps most of the image's, and then of the smallest.

        Raises:
            ProcessorKwargsError, MediaError: as of a call.
        """
        if not isinstance(cropping, bool):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: cropping must be true or false; got {cropping!r:.80}", got=cropping
            )
        if not self.takes(size):
            raise MediaError(
                f"{size[0]} x {size[1]} pixels: fitted into {self.side} x {self.side}, one side has no pixel left; "
                "crop it",
                got=size,
            )
        if not cropping:
            return 1, 1

        def merit(candidate: Size) -> tuple[int, int]:
            scale = min(candidate[0] / size[0], candidate[1] / size[1])
            kept = min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])
            return kept, kept - candidate[0] * candidate[1]

        width, height = max(self.candidates, key=merit)  # the first of equals
        return width // self.side, height // self.side

    def _lay_out(self, token_ids: Sequence[int], grids: Sequence[Size]) -> list[int]:
        named = list(token_ids).count(self.image_token_id)
        if named != len(grids):
            raise ValueError(f"the text has {named} {self.image_token}, {len(grids)} images were given")
        waiting = iter(grids)
        return [
            token
            for given in token_ids
            for token in [given] * (self.num_tokens(*next(waiting)) if given == self.image_token_id else 1)
        ]

    def _views(self, image: Image.Image, columns: int, rows: int) -> list[Pixels]:
        """`[3, side, side]` each: the whole image, then its tiles row by row."""
        side, image = self.side, image.convert("RGB")
        whole = self._pixels(ImageOps.pad(image, (side, side), color=self._colour))
        fitted = self._pixels(ImageOps.pad(image, (columns * side, rows * side), color=self._colour))
        tiles = fitted.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        return [whole, *tiles.reshape(-1, 3, side, side)]

    def _pixels(self, image: Image.Image) -> Pixels:
        """`[3, height, width]`, normalized."""
        pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float32, order="C")
        pixels /= np.float32(255)
        if self._std is not None:
            pixels -= self._mean
            pixels /= self._std
        return pixels
