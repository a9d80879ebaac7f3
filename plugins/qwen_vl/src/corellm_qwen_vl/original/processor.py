"""Images and prompts as Qwen-VL takes them, with the call signature of a Hugging Face processor.

In a prompt an image is what stands between `<img>` and `</img>`. In the published code that is the image's path or
URL, padded to 256 tokens; here images come beside the text and are bound in order, so the text between the tags is
dropped and every image is `<img>`, 256 times `<imgpad>`, `</img>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from corellm.errors import PromptError
from corellm_qwen_vl.original.tokenizer import IMAGE_END, IMAGE_PAD, IMAGE_START

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)[:, None, None]
_STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)[:, None, None]


class NoArguments:
    """Qwen-VL's preprocessing has no arguments: `mm_processor_kwargs` are refused by name."""


class QwenVLProcessor:
    """Tokenizes prompts, lays out images.

    Args:
        tokenizer: of the checkpoint.
        visual: the configuration's section on vision.
    """

    valid_processor_kwargs = NoArguments
    image_token = IMAGE_PAD

    def __init__(self, tokenizer: Any, visual: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.image_size: int = visual["image_size"]
        self.num_image_tokens: int = visual["n_queries"]
        self._start, self._end, self._pad = tokenizer.convert_tokens_to_ids([IMAGE_START, IMAGE_END, IMAGE_PAD])

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        images: Image.Image | Sequence[Image.Image] | None = None,
        return_tensors: str | None = None,
    ) -> Mapping[str, Any]:
        """Process prompts and the images they name, in order.

        Returns:
            A `BatchFeature`: `input_ids` and `attention_mask` `[prompts, tokens]` with the images laid out;
            `pixel_values` `[images, 3, image_size, image_size]`.

        Raises:
            ValueError: the prompts name another number of images.
        """
        from transformers import BatchFeature

        data: dict[str, Any] = {}
        images = [images] if isinstance(images, Image.Image) else list(images or ())
        if text is not None:
            prompts = [
                self.collapse(ids) for ids in self.tokenizer([text] if isinstance(text, str) else [*text]).input_ids
            ]
            named = sum(prompt.count(self._start) for prompt in prompts)
            if named != len(images):
                raise ValueError(f"the text names {named} images, {len(images)} were given")
            data["input_ids"] = [self._lay_out(prompt) for prompt in prompts]
            data["attention_mask"] = [[1] * len(prompt) for prompt in data["input_ids"]]
        if images:
            data["pixel_values"] = np.stack([self._pixels(image) for image in images])
        return BatchFeature(data, tensor_type=return_tensors)  # type: ignore[no-any-return]

    def collapse(self, token_ids: Sequence[int]) -> list[int]:
        """Reduce every image of a prompt to `<img><imgpad></img>`, without the path or padding in it.

        An image that is already expanded to padding is kept: the engine refuses it.

        Raises:
            PromptError: an `<img>` without its `</img>`.
        """
        ids = list(token_ids)
        collapsed: list[int] = []
        position = 0
        for start in [i for i, token in enumerate(ids) if token == self._start]:
            end = next((i for i in range(start + 1, len(ids)) if ids[i] in (self._start, self._end)), None)
            if end is None or ids[end] == self._start:
                raise PromptError(f"the {IMAGE_START} at position {start} of the prompt is not closed by {IMAGE_END}")
            inside = ids[start + 1 : end]
            kept = inside if inside and set(inside) == {self._pad} else [self._pad]
            collapsed += [*ids[position : start + 1], *kept, self._end]
            position = end + 1
        return collapsed + ids[position:]

    def layout(self, num_embeddings: int | None = None) -> list[int]:
        """The tokens of one image; `<imgpad>` are those that take embeddings."""
        return [self._start, *[self._pad] * (num_embeddings or self.num_image_tokens), self._end]

    def _lay_out(self, collapsed: Sequence[int]) -> list[int]:
        whole = [self._pad] * self.num_image_tokens
        return [token for given in collapsed for token in (whole if given == self._pad else [given])]

    def _pixels(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        """`[3, size, size]`: resized to a square, bicubic, normalized as for CLIP."""
        size = (self.image_size, self.image_size)
        squeezed = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        pixels = np.asarray(squeezed).transpose(2, 0, 1).astype(np.float32, order="C")
        pixels /= np.float32(255)
        pixels -= _MEAN
        pixels /= _STD
        return pixels
