"""BLIP-2 for corellm: `Blip2ForConditionalGeneration` with a decoder for its text model (OPT).

An image becomes the outputs of the Q-Former's queries, always the same number, and they stand before the whole prompt,
its BOS included; the text has no placeholder for them. One image per prompt, as in training. Knows no
encoder-decoder text model (T5); InstructBLIP, whose Q-Former reads the question too, is in `instruct`, and what takes
videos instead of images in `instruct_video`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import MultiModalFieldConfig, PromptIndexTargets, PromptInsertion, collect_media, dummy_images

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalItems

__all__ = ["Blip2"]


class Blip2:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, channels, height, width]
    served = "OPT (Salesforce/blip2-opt-2.7b)"
    """A text model that can be served, and a checkpoint with it."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def load_model(self) -> None:
        """Refuse what cannot be served before weights are read; the core's default then loads them.

        Raises:
            CheckpointError: the text model is an encoder-decoder, no token stands for items, or the processor and the
                model disagree about the number of queries.
        """
        config, path = self.context.hf_config, self.context.model_path
        if config.text_config.is_encoder_decoder:
            raise CheckpointError(
                f"{path}: the text model is {config.text_config.model_type!r}, an encoder-decoder, and this plugin "
                f"serves decoders only; take a checkpoint with {self.served}, or run this one with transformers' own "
                f"generate"
            )
        modality = next(iter(self.supported_mm_limits))
        if getattr(config, f"{modality}_token_id") is None:
            tokenizer = self.context.tokenizer
            token = tokenizer.get_vocab().get(f"<{modality}>", len(tokenizer))
            raise CheckpointError(
                f"{path}: config.json names no {modality} token, as in checkpoints from before there was one; take a "
                f'newer revision, or add "{modality}_token_index": {token} to it'
            )
        processor = self.context.hf_processor
        if processor.num_query_tokens not in (None, config.num_query_tokens):
            raise CheckpointError(
                f"{path}: num_query_tokens is {processor.num_query_tokens} in the processor's configuration and "
                f"{config.num_query_tokens} in config.json; make the former what the model has"
            )

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """The prompt for visual question answering: `Question: ... Answer: ... Question: ... Answer:`.

        BLIP-2 was published with this prompt (Li et al. 2023, arXiv:2301.12597); earlier turns come first. Other roles'
        text goes in as it is. An image without any text is captioned: its prompt is empty.
        """
        if chat_template:
            return None
        turns: list[str] = []
        for message in messages:
            text = "".join(part["text"] for part in message["content"] if part["type"] == "text").strip()
            if text:
                turns.append(_turn(message["role"], text))
        if add_generation_prompt and turns:
            turns.append("Answer:")
        return ChatPrompt(" ".join(turns), collect_media(messages))

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptInsertion]:
        """An image token per query at the very start.

        The number is the model's: processors of older checkpoints do not state it.
        """
        config = self.context.hf_config

        def insertion(index: int) -> list[int]:
            return [config.image_token_id] * (mm_items["image"].num_embeddings(index) or config.num_query_tokens)

        return [PromptInsertion("image", PromptIndexTargets.start(), insertion)]

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text model's decoder; BLIP-2's own `get_decoder` includes the output layer."""
        decoder: nn.Module = model.language_model.get_decoder()
        return decoder

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor | Sequence[Tensor]:
        """Tower, Q-Former, projection: `[images, queries, hidden_size]`.

        Positions are interpolated for requests with another `size`; at the tower's own size they do not change.
        """
        features = model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)
        embeddings: Tensor = features.pooler_output
        return embeddings


def _turn(role: str, text: str) -> str:
    """One message of a conversation."""
    if role == "user":
        return f"Question: {text}"
    if role == "assistant":
        return f"Answer: {text.removesuffix('.')}."
    return text
