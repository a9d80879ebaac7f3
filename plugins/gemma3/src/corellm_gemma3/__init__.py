"""Gemma 3 for corellm: `Gemma3ForConditionalGeneration`.

An image becomes 256 image tokens between markers and blank lines. Its tokens see each other; all else is causal. Most
layers see a window of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    dummy_images,
    embedded_spans,
)

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Gemma3"]

_BLANK = 2
"""Line breaks that the processor puts before and behind an image."""


class Gemma3:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, channels, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The token that begins an image."""
        return str(self.context.tokenizer.boi_token) if modality == "image" else None

    @hookimpl
    def call_hf_processor(self, mm_kwargs: Mapping[str, Any]) -> None:
        """Refuse crops; the core calls the processor.

        Raises:
            ProcessorKwargsError: an image is to be cut into crops. Of these the processor writes a text, whose tokens
                join those around it.
        """
        if mm_kwargs.get("do_pan_and_scan", self.context.hf_processor.image_processor.do_pan_and_scan):
            raise ProcessorKwargsError(
                "do_pan_and_scan=True adds crops of an image, and text about them that joins the text around it; "
                "corellm-gemma3 takes images whole: set do_pan_and_scan=False, and send crops as images"
            )

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Put a blank line before and behind each image; line breaks that are there already become longer tokens."""
        begin = self.context.tokenizer.boi_token_id
        out: list[int] = []
        run: list[int] = []  # tokens of line breaks since the last other token
        added = 0  # line breaks to add to them

        def close() -> None:
            nonlocal added
            count = added + sum(self._line_breaks[token] for token in run)
            out.extend(self._encoded("\n" * count) if added else run)
            run.clear()
            added = 0

        for token in token_ids:
            if token in self._line_breaks:
                run.append(token)
                continue
            added += _BLANK if token == begin else 0
            close()
            out.append(token)
            added = _BLANK if token == begin else 0
        close()
        return out

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
        return list(self.context.tokenizer(text, add_special_tokens=False)["input_ids"])

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The token that begins an image is followed by its tokens, and by the one that ends it."""
        tokenizer = self.context.tokenizer

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                self._check_size(out_mm_kwargs["image"][index]["pixel_values"].data)
                count = self.context.hf_processor.image_seq_length
            return PromptUpdateDetails.select_token_id(
                [tokenizer.boi_token_id, *[tokenizer.image_token_id] * count, tokenizer.eoi_token_id],
                tokenizer.image_token_id,
            )

        return [PromptReplacement("image", target=[tokenizer.boi_token_id], replacement=replacement)]

    def _check_size(self, pixels: Tensor) -> None:
        """Refuse an image `[channels, height, width]` that the tower does not take.

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
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower, pooling, projector: `[images, 256, hidden_size]`."""
        features: Tensor = model.get_image_features(mm_kwargs["pixel_values"]).pooler_output
        return features
