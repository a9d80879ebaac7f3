"""GIT for corellm: `GitForCausalLM`, a tower and a decoder of BERT's kind.

An image's embeddings stand before the whole prompt; the text has no placeholder for them. They see each other and no
text, and have no positions: the text's begin at 0 behind them. How the decoder runs is in `decoder`. One image per
prompt, as in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptIndexTargets,
    PromptInsertion,
    collect_media,
    dummy_images,
    embedded_spans,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalItems

__all__ = ["Git"]


class Git:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, channels, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized and cropped to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """The conversation's texts, each on a line: the model was trained on single texts and knows no turns."""
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Without `[SEP]`, which ends what the model writes: the tokenizer puts it behind every text."""
        return token_ids[:-1] if token_ids[-1:] == [self.context.tokenizer.sep_token_id] else token_ids

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptInsertion]:
        """A token of padding for each of the tower's outputs, at the very start; GIT has no image token."""

        def insertion(index: int) -> list[int]:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = self._num_outputs(out_mm_kwargs["image"][index]["pixel_values"].data)
            return [self.context.tokenizer.pad_token_id] * count

        return [PromptInsertion("image", PromptIndexTargets.start(), insertion)]

    def _num_outputs(self, pixel_values: Tensor) -> int:
        """Number of the tower's outputs for one image `[channels, height, width]`; none if it has no patch."""
        side: int = self.context.hf_config.vision_config.patch_size
        height, width = pixel_values.shape[-2:]
        patches: int = (height // side) * (width // side)
        return patches + 1 if patches else 0  # the class token's comes first

    @hookimpl
    def get_bidirectional_spans(self, mm_features: Sequence[MultiModalFeature]) -> list[tuple[int, int]]:
        """The image; the text sees all of it."""
        return embedded_spans(mm_features)

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text's embeddings and layers, without the tower."""
        from corellm_git.decoder import Decoder

        return Decoder(model.git)

    @hookimpl
    def get_rope_positions(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> tuple[Tensor, int]:
        """The text's from 0; -1, which the decoder takes for none, for the image."""
        import torch

        end = mm_features[-1].placeholder.end
        return (torch.arange(len(token_ids)) - end).clamp(min=-1), -end

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower and projection: `[images, outputs, hidden_size]`.

        Positions are interpolated for requests with another `crop_size`; at the tower's own size they do not change.
        """
        tower, project = model.git.image_encoder, model.git.visual_projection
        seen = tower(mm_kwargs["pixel_values"], interpolate_pos_encoding=True).last_hidden_state
        embeddings: Tensor = project(seen)
        return embeddings
