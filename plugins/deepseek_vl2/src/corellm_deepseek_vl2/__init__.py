"""DeepSeek-VL2 for corellm: an image is seen whole and in tiles, row by row of their patches.

A placeholder becomes as many image tokens as the views have embeddings, with one at the end of each row and one
between the views. transformers does not have this model: configuration, tokenizer, processor and vision tower are
here, the text decoder is one of transformers' DeepSeek decoders. No code of a checkpoint runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import ChatPrompt, LoadConfig, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalItems,
    MultiModalKwargsItem,
    PromptReplacement,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["DeepseekVL2"]


class DeepseekVL2:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return the configuration class; transformers has no `deepseek_vl_v2`."""
        from corellm_deepseek_vl2.config import DeepseekVLV2Config

        return DeepseekVLV2Config

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return the tokenizer factory, which adds what the published processor adds."""
        from corellm_deepseek_vl2.tokenizer import load_tokenizer

        return load_tokenizer

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the processor factory; the published one is code of the checkpoint's repository."""
        from corellm_deepseek_vl2.processor import make_processor

        return lambda path: make_processor(path, self.context.tokenizer, self.context.hf_config)

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """The image that becomes the most tokens, of the sides of all candidates within the operator's bounds."""
        bounds, processor = mm_options.get("image", {}), self.context.hf_processor
        cropping = self.context.kwargs_for("image").get("cropping", True)
        widths, heights = (
            {min(side, bounds.get(name, side)) for side in sides}
            for name, sides in zip(("width", "height"), zip(*processor.candidates, strict=True), strict=True)
        )
        width, height = max(
            ((width, height) for width in widths for height in heights if processor.takes((width, height))),
            key=lambda size: (processor.num_tokens(*processor.grid(size, cropping=cropping)), size),
        )
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height)}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The image on a line of its own, as in the published examples."""
        return f"{self.context.hf_processor.image_token}\n" if modality == "image" else None

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """The family's own form, unless there is a chat template."""
        from corellm_deepseek_vl2.chat import make_context

        if chat_template is not None:
            return None
        return make_context(
            messages,
            placeholder=f"{self.context.hf_processor.image_token}\n",
            end=self.context.tokenizer.eos_token,
            add_generation_prompt=add_generation_prompt,
        )

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """`pixel_values` `[views of all images, 3, side, side]`, `images_spatial_crop` `[images, 2]`."""
        views = 1 + hf_inputs["images_spatial_crop"].prod(-1)
        return {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", views),
            "images_spatial_crop": MultiModalFieldConfig.batched("image"),
        }

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """An image token becomes one per embedding, those that end rows and divide views included."""
        processor = self.context.hf_processor

        def replacement(index: int) -> list[int]:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = processor.num_tokens(*out_mm_kwargs["image"][index]["images_spatial_crop"].data.tolist())
            return [processor.image_token_id] * count

        return [PromptReplacement("image", target=[processor.image_token_id], replacement=replacement)]

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Return the model.

        Raises:
            CheckpointError: a file is broken, or a weight is missing, misshapen or has no place.
        """
        from corellm_deepseek_vl2.model import load_model

        return load_model(self.context.hf_config, load_config)

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower and projector over all views, then each image's laid out: `[tokens, hidden_size]` per image."""
        embeddings: list[Tensor] = model.encode(mm_kwargs["pixel_values"], mm_kwargs["images_spatial_crop"])
        return embeddings
