"""LLaVA for corellm: `LlavaForConditionalGeneration`, with any vision tower and text model transformers knows.

An image's `<image>` token becomes as many image tokens as the tower has patches; the vision tower and the projector
give an embedding for each. This is the adapter to start a new one from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import MultiModalFieldConfig, MultiModalKwargsItem, PromptReplacement, dummy_images

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Llava"]


class Llava:
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
        """The image on a line of its own, as in training."""
        return f"{self.context.hf_processor.image_token}\n" if modality == "image" else None

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """An image token becomes one per patch."""
        token = self.context.hf_config.image_token_id

        def replacement(index: int) -> list[int]:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = self._num_patches(out_mm_kwargs["image"][index]["pixel_values"].data)
            return [token] * count

        return [PromptReplacement("image", target=[token], replacement=replacement)]

    def _num_patches(self, pixel_values: Tensor) -> int:
        """Number of embeddings of one image `[channels, height, width]`: patches, and the class token if it is kept."""
        processor = self.context.hf_processor
        height, width = pixel_values.shape[-2:]
        patches: int = (height // processor.patch_size) * (width // processor.patch_size)
        class_tokens: int = processor.num_additional_image_tokens
        return patches + class_tokens - int(processor.vision_feature_select_strategy == "default")

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Sequence[Tensor]:
        """Tower, feature layers, projector: `[patches, hidden_size]` per image.

        Positions are interpolated for requests with another `crop_size`; at the tower's own size they do not change.
        """
        output = model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)
        features: Sequence[Tensor] = output.pooler_output
        return features
