"""InternVL for corellm: `InternVLChatModel`, the published checkpoints, whose code is never run.

An image becomes tiles of one size, as many as suit its shape, and a small one of all of it; each tile becomes the same
number of embeddings. Configuration, tiles and the form of conversations are here; vision tower, projector and language
model are those of transformers' InternVL, to which the published weights are brought.
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
    PromptUpdateDetails,
    dummy_images,
)
from corellm_internvl.chat import IM_END, PLACEHOLDER, make_context
from corellm_internvl.config import load_config as load_internvl_config
from corellm_internvl.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["InternVLChat"]


class InternVLChat:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    placeholders = {"image": PLACEHOLDER}

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return the configuration factory; transformers has no `internvl_chat`."""
        return load_internvl_config

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return the tokenizer factory, which adds a token for an image as users write it."""
        return load_tokenizer

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the processor factory; the checkpoints have no processor."""
        from corellm_internvl.processor import InternVLChatProcessor

        context, most = self.context, self.context.kwargs_for("image").get("max_dynamic_patch")
        return lambda _: InternVLChatProcessor(context.tokenizer, context.hf_config, most)

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """An image of most tiles, of those that fit into the operator's sizes at the ratio of their grid."""
        tiler, kwargs = self.context.hf_processor.image_processor, self.context.kwargs_for("image")
        bounds = mm_options.get("image", {})

        def scaled(columns: int, rows: int) -> tuple[int, int]:
            width, height = columns * tiler.tile_size, rows * tiler.tile_size
            scale = min(1, bounds.get("width", width) / width, bounds.get("height", height) / height)
            return max(1, round(width * scale)), max(1, round(height * scale))

        def num_tiles(size: tuple[int, int]) -> int:
            columns, rows = tiler.grid(*size, **kwargs)
            return int(columns * rows)

        width, height = max((scaled(*grid) for grid in tiler.grids(**kwargs)), key=num_tiles)
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height)}

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """The family's ChatML, in the form that `config.json` names, unless there is a chat template."""
        if chat_template is not None:
            return None
        config = self.context.hf_config
        return make_context(messages, config.template, config.system_message, add_generation_prompt)

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """The tiles of all images are one tensor."""
        return {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", hf_inputs["num_tiles"]),
            "num_tiles": MultiModalFieldConfig.batched("image"),
        }

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """A token per embedding of each tile, between two marks."""
        processor = self.context.hf_processor

        def replacement(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = int(out_mm_kwargs["image"][index]["num_tiles"].data) * processor.image_seq_length
            return PromptUpdateDetails.select_token_id(processor.layout(count), processor.context_token_id)

        return [PromptReplacement("image", target=[processor.image_token_id], replacement=replacement)]

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Return the model, whose texts end with the assistant's message, as in the family's own `chat`."""
        from corellm_internvl.weights import load_model

        model: Any = load_model(self.context.hf_config, load_config)
        stated, end = model.generation_config.eos_token_id, self.context.tokenizer.convert_tokens_to_ids(IM_END)
        ends = {*(stated if isinstance(stated, list) else [stated]), end} - {None}
        model.generation_config.eos_token_id = sorted(ends)
        loaded: nn.Module = model
        return loaded

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tiles go through the tower one beside the other; an image's embeddings are those of its tiles in a row."""
        tiles = model.get_image_features(mm_kwargs["pixel_values"]).pooler_output  # [tiles, tokens, width]
        return [own.flatten(0, 1) for own in tiles.split(mm_kwargs["num_tiles"].tolist())]
