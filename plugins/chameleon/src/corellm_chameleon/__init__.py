"""Chameleon for corellm: `ChameleonForConditionalGeneration`, which reads images as tokens of its vocabulary.

A VQ-VAE turns an image into codes, each of which is a token with an embedding of its own; they stand between a token
that begins an image and one that ends it. Every prompt ends with the token that ends a turn. Text alone is generated:
the logits of image tokens are masked, and an output ends where an image would begin.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalItems,
    PromptReplacement,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Chameleon"]


class Chameleon:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, 3, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self._image_tokens: Tensor | None = None

    @hookimpl(wrapper=True)
    def load_model(self) -> Generator[None, Any, nn.Module]:
        """Return the model, whose texts end with their turn, and before an image, as in the family's own code.

        Raises:
            CheckpointError: the processor writes another number of tokens than the model makes of its images.
        """
        processor = self.context.hf_processor
        size = processor.image_processor.crop_size
        count = self._num_codes(size["height"], size["width"])
        if count != processor.image_seq_length:
            raise CheckpointError(
                f"{self.context.model_path}: the processor's image_seq_length is {processor.image_seq_length}, but an "
                f"image of its crop_size becomes {count} tokens; make the former {count}"
            )
        model: nn.Module = yield
        generation: Any = model.generation_config
        stated = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
        ends = {*stated, self.context.tokenizer.sep_token_id, processor.image_start_token_id} - {None}
        generation.eos_token_id = sorted(ends)
        return model

    def _num_codes(self, height: int, width: int) -> int:
        """Number of codes of an image: every level of the VQ-VAE but the last halves its sides."""
        levels = len(self.context.hf_config.vq_config.channel_multiplier) - 1
        return (height >> levels) * (width >> levels)

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is cropped to the same size."""
        size = self.context.hf_processor.image_processor.crop_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size["width"], height=size["height"])}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The checkpoint's image token."""
        return str(self.context.hf_processor.image_token) if modality == "image" else None

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """Without a template the form of Chameleon's training: messages as they are, each ended by the same token."""
        if chat_template:
            return None
        processor = self.context.hf_processor
        turns = [
            "".join(part["text"] if part["type"] == "text" else processor.image_token for part in message["content"])
            for message in messages
        ]
        return ChatPrompt("".join(turn + processor.tokenizer.sep_token for turn in turns), collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """End every prompt with the token that ends a turn; a conversation's ends with it already."""
        end = self.context.tokenizer.sep_token_id
        return token_ids if token_ids[-1:] == [end] else [*token_ids, end]

    @hookimpl(wrapper=True)
    def call_hf_processor(self) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse arguments that make an image of another size: an image has always the same number of tokens."""
        outputs = yield
        height, width = outputs["pixel_values"].shape[-2:]
        wanted = self.context.hf_processor.image_seq_length
        if self._num_codes(height, width) != wanted:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: an image of {width} x {height} pixels becomes {self._num_codes(height, width)} "
                f"tokens and not the {wanted} of this model; leave out what changes its size",
                expected=wanted,
                got=self._num_codes(height, width),
            )
        return outputs

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptReplacement]:
        """The image token becomes one per code, between the tokens that begin and end an image."""
        processor = self.context.hf_processor

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index) or processor.image_seq_length
            codes = [processor.image_token_id] * count
            return PromptUpdateDetails.select_token_id(
                [processor.image_start_token_id, *codes, processor.image_end_token_id], processor.image_token_id
            )

        return [PromptReplacement("image", target=[processor.image_token_id], replacement=replacement)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Codes of the VQ-VAE, their tokens, the text's embeddings of these: `[images, codes, hidden_size]`."""
        embeddings: Tensor = model.get_image_features(mm_kwargs["pixel_values"]).pooler_output
        return embeddings

    @hookimpl
    def compute_logits(self, model: Any, hidden_states: Tensor) -> Tensor:
        """Mask the tokens of codes, as the model's own forward pass does; the tokens around an image stay possible."""
        import torch

        logits: Tensor = model.lm_head(hidden_states)
        if self._image_tokens is None:  # some thousands: copied to the device once
            self._image_tokens = torch.tensor(model.model.vocabulary_mapping.image_tokens, device=logits.device)
        return logits.index_fill_(-1, self._image_tokens, torch.finfo(logits.dtype).min)
