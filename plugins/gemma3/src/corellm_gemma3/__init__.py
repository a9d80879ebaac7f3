"""Gemma 3 for corellm: `Gemma3ForConditionalGeneration`.

An image becomes 256 image tokens between markers and blank lines; where crops of it are asked for, they stand behind.
Its tokens see each other; all else is causal. Most layers see a window of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    check_processor_kwargs,
    check_sizes,
    dummy_images,
    embedded_spans,
)

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Gemma3"]

_BLANK = 2
"""Line breaks that the processor puts before and behind an image."""
_MIN_CROP, _MAX_CROPS = 256, 4
"""The processor's own size of the smallest crop, and number of crops."""
_WITH_CROPS = 4
"""Dimensions of the pixels of an image with crops."""
_ORIGINAL = "Here is the original image \n\n"
_CROPS = "\n\n and here are some crops to help you see better \n\n"
_BETWEEN = "\n\n \n\n"
"""What it writes before an image that has crops, before the first, and before each other one."""


class Gemma3:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size: the largest is the one that is cut into most crops."""
        width = height = self.context.hf_config.vision_config.image_size
        kwargs = self.context.kwargs_for("image")
        if kwargs.get("do_pan_and_scan"):
            height = kwargs.get("pan_and_scan_min_crop_size", _MIN_CROP)
            width = height * max(2, self._most_crops, ceil(kwargs.get("pan_and_scan_min_ratio_to_activate", 0)))
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height)}

    @property
    def _most_crops(self) -> int:
        """Of an image that is cut, as memory is planned for."""
        most: int = self.context.kwargs_for("image").get("pan_and_scan_max_num_crops", _MAX_CROPS)
        return most

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The token that begins an image."""
        return str(self.context.tokenizer.boi_token) if modality == "image" else None

    @hookimpl
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Pixels of the one image with its crops, `[1 + crops, channels, height, width]`, where they are asked for.

        As a list of one, without the dimension if there are none; the core calls the processor for an image alone.

        Raises:
            ProcessorKwargsError: the processor does not take the arguments.
        """
        if not mm_kwargs.get("do_pan_and_scan"):
            return None
        from huggingface_hub.errors import StrictDataclassError

        processor = self.context.hf_processor
        check_processor_kwargs(processor, mm_kwargs)
        check_sizes(processor, "image", self.context.kwargs_for("image"), mm_kwargs)
        most = mm_kwargs.get("pan_and_scan_max_num_crops")
        if isinstance(most, int) and most > self._most_crops:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: pan_and_scan_max_num_crops {most} of a request is above {self._most_crops}, for "
                "which memory was planned at start; start with LLM(..., mm_processor_kwargs=...) for more",
                expected=self._most_crops,
                got=most,
            )
        text, images = processor.tokenizer.boi_token, list(mm_data["image"])
        try:
            pixels: Tensor = processor(text=text, images=images, return_tensors="pt", **mm_kwargs)["pixel_values"]
        except (TypeError, ValueError, ArithmeticError, StrictDataclassError) as error:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {dict(mm_kwargs)} does not fit this image ({error})", got=dict(mm_kwargs)
            ) from error
        return {"pixel_values": [pixels if len(pixels) > 1 else pixels[0]]}

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def apply_hf_processor_tokens_only(
        self, token_ids: list[int], out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[int]:
        """Put a blank line before and behind each image, and before one with crops what announces them.

        Both join the text beside: line breaks that are there already become longer tokens.
        """
        begin = self.context.tokenizer.boi_token_id
        crops = iter([_num_crops(item) for item in out_mm_kwargs.get("image", ())])
        out: list[int] = []
        text: list[int] = []  # tokens since the last one that no text stands for
        behind = 0  # line breaks to put before them
        for token in token_ids:
            if token not in self._apart:
                text.append(token)
                continue
            if token == begin and next(crops, 0):
                out += self._encoded("\n" * behind + self._decoded(text) + _ORIGINAL)
            else:
                out += self._with_blanks(text, behind, _BLANK if token == begin else 0)
            out.append(token)
            text, behind = [], _BLANK if token == begin else 0
        return out + self._with_blanks(text, behind, 0)

    def _with_blanks(self, text: list[int], before: int, behind: int) -> list[int]:
        """Return a text's tokens with line breaks at its ends, which join those that are there."""
        start = next((i for i, token in enumerate(text) if token not in self._line_breaks), len(text))
        if start == len(text):
            return self._joined(text, before + behind)
        end = next(i for i in range(len(text), 0, -1) if text[i - 1] not in self._line_breaks)
        return [*self._joined(text[:start], before), *text[start:end], *self._joined(text[end:], behind)]

    def _joined(self, line_breaks: list[int], more: int) -> list[int]:
        count = more + sum(self._line_breaks[token] for token in line_breaks)
        return self._encoded("\n" * count) if more else line_breaks

    @cached_property
    def _apart(self) -> Mapping[int, str]:
        """Special tokens, and how they are written: what is beside them joins nothing."""
        known = self.context.tokenizer.added_tokens_decoder
        return {token: text.content for token, text in known.items() if text.special}

    @cached_property
    def _line_breaks(self) -> Mapping[int, int]:
        """Tokens of line breaks alone, and of how many."""
        found: dict[int, int] = {}
        for count in range(1, 64):
            tokens = self._encoded("\n" * count)
            if len(tokens) == 1:
                found[tokens[0]] = count
        return found

    def _encoded(self, text: str) -> list[int]:
        """Return a text's tokens, none of which is special."""
        typed = any(special in text for special in self._apart.values())
        tokenizer = self._splitting if typed else self.context.tokenizer
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def _splitting(self) -> Any:
        """A tokenizer that takes what looks like a special token as text.

        A copy: an argument of the call would change the tokenizer for other threads, too.
        """
        copy = deepcopy(self.context.tokenizer)
        copy.split_special_tokens = True
        return copy

    def _decoded(self, tokens: list[int]) -> str:
        return str(self.context.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The token that begins an image is followed by its tokens, and the one that ends it; its crops come behind."""
        tokenizer = self.context.tokenizer

        def whole(count: int) -> list[int]:
            return [tokenizer.boi_token_id, *[tokenizer.image_token_id] * count, tokenizer.eoi_token_id]

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is not None:
                return PromptUpdateDetails.select_token_id(whole(count), tokenizer.image_token_id)
            item = out_mm_kwargs["image"][index]
            self._check_size(item["pixel_values"].data)
            tokens = whole(self.context.hf_processor.image_seq_length)
            for i in range(_num_crops(item)):
                tokens += self._encoded(_BETWEEN if i else _CROPS) + whole(self.context.hf_processor.image_seq_length)
            return PromptUpdateDetails.select_token_id(tokens, tokenizer.image_token_id)

        return [PromptReplacement("image", target=[tokenizer.boi_token_id], replacement=replacement)]

    def _check_size(self, pixels: Tensor) -> None:
        """Refuse an image `[..., height, width]` that the tower does not take.

        Raises:
            ProcessorKwargsError: says which arguments to leave out.
        """
        size = self.context.hf_config.vision_config.image_size
        if pixels.shape[-2:] != (size, size):
            raise ProcessorKwargsError(
                f"the vision tower takes images of {size} x {size}, and the arguments of the processor make one of "
                f"{pixels.shape[-1]} x {pixels.shape[-2]}; leave out size, do_resize and crop_size"
            )

    @hookimpl
    def get_bidirectional_spans(self, mm_features: Sequence[MultiModalFeature]) -> Sequence[tuple[int, int]]:
        """An image's tokens see each other."""
        return embedded_spans(mm_features)

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower, pooling, projector: 256 of each image, and of each of its crops."""
        import torch

        pixels = [one if one.dim() == _WITH_CROPS else one[None] for one in mm_kwargs["pixel_values"]]
        features = model.get_image_features(torch.cat(pixels)).pooler_output  # [images and crops, 256, width]
        return [own.flatten(0, 1) for own in features.split([len(one) for one in pixels])]


def _num_crops(item: MultiModalKwargsItem) -> int:
    """How many crops an image has; none where its embeddings were given."""
    pixels = item["pixel_values"].data if "pixel_values" in item else None
    return len(pixels) - 1 if pixels is not None and pixels.dim() == _WITH_CROPS else 0
