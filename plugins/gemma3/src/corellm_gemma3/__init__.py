"""Gemma 3 for corellm: `Gemma3ForConditionalGeneration`.

An image becomes 256 image tokens between markers and blank lines. Its tokens see each other; all else is causal. Most
layers see a window of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
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
    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("image"),  # [images, channels, height, width]
        "num_crops": None,
    }

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
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Resize and normalise the image.

        Raises:
            ProcessorKwargsError: it is to be cropped, for which the processor rewrites the text around it.
        """
        output: Mapping[str, Any] = self.context.hf_processor.image_processor(
            mm_data["image"], return_tensors="pt", **mm_kwargs
        )
        if int(output["num_crops"][0]):
            raise ProcessorKwargsError(
                "do_pan_and_scan=True cuts images into crops, and the text around an image depends on their number; "
                "corellm-gemma3 takes whole images: leave it out, or send the crops as images"
            )
        return output

    @hookimpl
    def get_mm_kwargs_names(self, modality: str) -> Iterable[str] | None:
        """All that the image processor declares."""
        return tuple(self.context.hf_processor.image_processor.valid_kwargs.__annotations__)

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
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptReplacement]:
        """The token that begins an image is followed by its tokens, and by the one that ends it."""
        tokenizer = self.context.tokenizer

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = self.context.hf_processor.image_seq_length
            return PromptUpdateDetails.select_token_id(
                [tokenizer.boi_token_id, *[tokenizer.image_token_id] * count, tokenizer.eoi_token_id],
                tokenizer.image_token_id,
            )

        return [PromptReplacement("image", target=[tokenizer.boi_token_id], replacement=replacement)]

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
