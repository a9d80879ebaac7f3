"""An image as Molmo takes it: the whole, shrunk, and overlapping crops of it enlarged, all of one size and as patches.

Every crop has margins that only its own patches look into: at an inner edge they get no token. Beside the patches come
their tokens' places among the image's tokens, and the part of each patch that is image, not padding.

Sizes are computed in float32, and images resized by `torch.nn.functional.interpolate`, bilinear, antialiased: that is
what the published processor's torchvision calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from corellm.errors import CheckpointError, ProcessorKwargsError
from corellm_molmo.tokenizer import IMAGE_TOKENS

_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])
_MOST_CROPS = 100
"""A request may ask for; the published models were trained with 12."""
_TEMPLATE = (
    "{% for message in messages %}{{ ' ' + message['role'].capitalize() + ': ' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' Assistant:' }}{% endif %}"
)
"""Chat template of checkpoints without one."""

ImageKwargs = TypedDict("ImageKwargs", {"max_crops": int})  # noqa: UP013 -- with types, not their names
"""Arguments of a request."""


class _OfImagesAlone:
    """All arguments are the image processor's."""


class MolmoImageProcessor:
    """Cuts images.

    Args:
        settings: `preprocessor_config.json`.
        tokenizer: of the checkpoint.
    """

    valid_kwargs = ImageKwargs

    def __init__(self, settings: Mapping[str, Any], tokenizer: Any) -> None:
        self.max_crops: int = settings.get("max_crops", 12)
        self.do_normalize: bool = settings.get("do_normalize", True)
        self.patch: int = settings.get("image_patch_size", 14)
        self.side: int = settings.get("base_image_input_size", [336, 336])[0]
        self.left, self.right = settings.get("overlap_margins", [4, 4])  # in patches, of all edges alike
        self.window = self.side - self.patch * (self.left + self.right)  # of a crop, without margins, in pixels
        self.per_side = self.side // self.patch // 2  # tokens
        self._ids = tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))

    def __call__(self, image: Image.Image, max_crops: int | None = None) -> dict[str, Tensor]:
        """Return an image's crops, the whole first.

        Returns:
            `images` `[crops, patches, values]`; `image_masks` `[crops, patches]`, the part of a patch that is image;
            `image_input_idx` `[crops, tokens]`, places among the image's tokens, -100 for none; `image_tokens`.

        Raises:
            ProcessorKwargsError: `max_crops` is no number of crops.
        """
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
        rows, columns = self.tiling(image.width, image.height, max_crops)
        margins = self.side - self.window
        large, inside = self._fit(pixels, rows * self.window + margins, columns * self.window + margins)
        whole, _ = self._fit(pixels, self.side, self.side)
        crops = torch.cat([self._patches(whole), self._patches(large)])
        masks = self._patches(inside).sum(-1) / self.patch**2
        # published like this: a crop has the mask of the one behind it, the last has -1, which counts as part padding
        masks = torch.cat([masks, torch.full_like(masks[:1], -1)])
        tokens, places = self._layout(rows, columns)
        return {"images": crops, "image_masks": masks, "image_input_idx": places, "image_tokens": tokens}

    def tiling(self, width: int, height: int, max_crops: int | None = None) -> tuple[int, int]:
        """Return how many rows and columns of crops an image has: those to which it is enlarged least.

        Raises:
            ProcessorKwargsError: `max_crops` is no number of crops.
        """
        grids = self._grids(max_crops)
        inner = np.array([height, width], np.float32) - np.float32(self.side - self.window)
        with np.errstate(divide="ignore"):  # infinite, or negative: the image is no larger than the margins
            scales = (np.array(grids, np.float32) * np.float32(self.window) / inner).min(-1)
        if (scales < 1).all():
            return grids[int(scales.argmax())]
        return grids[int(np.where(scales < 1, np.inf, scales).argmin())]

    def largest(self, bounds: Mapping[str, int], max_crops: int | None = None) -> tuple[int, int]:
        """Return width and height, within `bounds`, of an image that becomes the most tokens."""
        full = {side: bounds.get(side, 2**31) for side in ("width", "height")}
        margins = self.side - self.window
        sizes = [
            (min(full["width"], columns * self.window + margins), min(full["height"], rows * self.window + margins))
            for rows, columns in self._grids(max_crops)
        ]
        return max(sizes, key=lambda size: len(self._layout(*self.tiling(size[0], size[1], max_crops))[0]))

    def _grids(self, max_crops: int | None) -> list[tuple[int, int]]:
        """All numbers of rows and columns, those of few crops first."""
        most = self.max_crops if max_crops is None else max_crops
        if not isinstance(most, int) or not 1 <= most <= _MOST_CROPS:
            raise ProcessorKwargsError(f"max_crops must be an integer from 1 to {_MOST_CROPS}, got {most!r}", got=most)
        grids = [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
        return sorted(grids, key=lambda grid: (grid[0] * grid[1], grid[0]))

    def _fit(self, pixels: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Resize to fit, pad, normalize: `[height, width, 3]`, and `[height, width, 1]`, 1 where the image is."""
        known = np.array(pixels.shape[1:], np.float32)
        scale = (np.array([height, width], np.float32) / known).min()
        inner = (known * scale).astype(int).clip(1).tolist()  # published code fails for sides of less than a pixel
        resized = functional.interpolate(
            pixels[None], size=inner, mode="bilinear", align_corners=False, antialias=True
        )[0].clamp(0, 1)
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        around = (0, 0, left, width - inner[1] - left, top, height - inner[0] - top)
        padded = functional.pad(resized.permute(1, 2, 0), around)
        if self.do_normalize:
            padded = (padded - _MEAN) / _STD
        return padded, functional.pad(torch.ones(*inner, 1), around)

    def _patches(self, image: Tensor) -> Tensor:
        """Cut `[height, width, channels]` into crops, row by row: `[crops, patches, values]`, a pixel's together."""
        cut = image.unfold(0, self.side, self.window).unfold(1, self.side, self.window)
        rows, columns, channels, side, _ = cut.shape
        count = side // self.patch
        cut = cut.view(rows, columns, channels, count, self.patch, count, self.patch)
        return cut.permute(0, 1, 3, 5, 4, 6, 2).reshape(rows * columns, count**2, -1)

    def _layout(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of an image with these crops, and the places of all crops' patches `[crops, tokens]`."""
        start, end, patch, column = self._ids
        step, size = self.window // self.patch // 2, self.per_side
        height, width = (count * step + size - step for count in (rows, columns))
        tokens = [start, *([patch] * size + [column]) * size, end, start, *([patch] * width + [column]) * height, end]
        first = size * (size + 1) + 3  # behind the whole
        row, column_of = self._kept(rows), self._kept(columns)
        places = torch.where(
            (row >= 0)[:, None, :, None] & (column_of >= 0)[None, :, None, :],
            first + row[:, None, :, None] * (width + 1) + column_of[None, :, None, :],
            -100,
        )
        whole = 1 + torch.arange(size)[:, None] * (size + 1) + torch.arange(size)
        return torch.tensor(tokens), torch.cat([whole.reshape(1, -1), places.reshape(rows * columns, -1)])

    def _kept(self, count: int) -> Tensor:
        """Each crop's rows, or columns, among all, `[crops, per_side]`; negative where a neighbour's count."""
        own = torch.arange(self.per_side)
        step = self.window // self.patch // 2
        crop = torch.arange(count)[:, None]
        inside = ((own >= self.left // 2) | (crop == 0)) & ((own < self.left // 2 + step) | (crop == count - 1))
        return torch.where(inside, crop * step + own, -1)


class MolmoProcessor:
    """Called like a Hugging Face processor, for images alone.

    Args:
        path: the checkpoint's directory.
        tokenizer: of the checkpoint.
        vision: the configuration's section on vision.

    Raises:
        CheckpointError: images would be cut otherwise than the model needs it, or the tokenizer is another model's.
    """

    valid_processor_kwargs = _OfImagesAlone

    def __init__(self, path: Path, tokenizer: Any, vision: Mapping[str, Any]) -> None:
        file = path / "preprocessor_config.json"
        unknown = [
            token for token in IMAGE_TOKENS if tokenizer.convert_tokens_to_ids(token) in (None, tokenizer.unk_token_id)
        ]
        if unknown:
            raise CheckpointError(
                f"{path}: the tokenizer has no {', '.join(unknown)}; take the checkpoint's own tokenizer"
            )
        self.tokenizer = tokenizer
        self.image_processor = MolmoImageProcessor(json.loads(file.read_text(encoding="utf-8")), tokenizer)
        # the published processor begins every prompt with a space, which the published template lacks
        self.chat_template = f"{{{{ ' ' }}}}{tokenizer.chat_template}" if tokenizer.chat_template else _TEMPLATE
        cut = self.image_processor
        if vision["image_default_input_size"] != [cut.side, cut.side] or vision["image_patch_size"] != cut.patch:
            raise CheckpointError(
                f"{file}: patches of {cut.patch} pixels of crops of {cut.side} pixels, but the model's are "
                f"{vision['image_patch_size']} of {vision['image_default_input_size']}; take files of one checkpoint"
            )
        if cut.window < 1 or (cut.side // cut.patch) % 2 or cut.left % 2 or cut.right % 2:
            raise CheckpointError(
                f"{file}: margins of {cut.left} and {cut.right} patches of {cut.side // cut.patch}: two by two are "
                f"pooled, so all must be even, and the margins must leave something"
            )

    def __call__(
        self,
        text: str | None = None,
        images: Image.Image | Sequence[Image.Image] = (),
        return_tensors: str | None = None,
        max_crops: int | None = None,
    ) -> Mapping[str, Any]:
        """Return the image's tensors, each as a list of one; `text` changes nothing.

        Raises:
            ProcessorKwargsError: `max_crops` is no number of crops.
            ValueError: not one image.
        """
        (image,) = [images] if isinstance(images, Image.Image) else images
        return {name: value[None] for name, value in self.image_processor(image, max_crops).items()}
