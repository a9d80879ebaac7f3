"""The original Qwen-VL for corellm: `QWenLMHeadModel`, whose checkpoints come with code that is never run.

An image of any shape is resized to 448 x 448 pixels and becomes 256 embeddings between `<img>` and `</img>`.
Configuration, tokenizer, processor and vision tower are here; the text decoder is transformers' Qwen2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm.hookspecs import ChatPrompt, LoadConfig, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalItems,
    PromptReplacement,
    PromptUpdateDetails,
    dummy_images,
)
from corellm_qwen_vl.original.chat import make_context, placeholder
from corellm_qwen_vl.original.config import load_config as load_qwen_vl_config
from corellm_qwen_vl.original.tokenizer import (
    IM_END,
    IM_START,
    IMAGE_END,
    IMAGE_PAD,
    IMAGE_START,
    load_tokenizer,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["QwenVL"]


class QwenVL:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, 3, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return the configuration factory; transformers has no `qwen`."""
        return load_qwen_vl_config

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return the tokenizer factory, which reads `qwen.tiktoken`."""
        return load_tokenizer

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the processor factory; the family has no processor."""
        from corellm_qwen_vl.original.processor import QwenVLProcessor

        return lambda _: QwenVLProcessor(self.context.tokenizer, self.context.hf_config.visual)

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized, so all are equally large."""
        size = self.context.hf_config.visual["image_size"]
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def get_placeholder_str(self, modality: str, index: int) -> str | None:
        """Numbered, on a line of its own."""
        return placeholder(index) if modality == "image" else None

    @hookimpl
    def make_context(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_window_size: int,
        add_generation_prompt: bool,
        chat_template: str | None,
    ) -> ChatPrompt | None:
        """The family's chatml, unless there is a chat template or the checkpoint is not for chat."""
        config = self.context.hf_config
        if chat_template is not None or config.chat_format != "chatml":
            return None

        def count_tokens(text: str, num_images: int) -> int:
            ids = self.context.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return len(ids) + num_images * int(config.visual["n_queries"])

        stated = config.max_window_size  # the family's own function keeps prompts below it
        return make_context(
            messages,
            max_tokens=max_window_size if stated is None else min(max_window_size, stated - 1),
            count_tokens=count_tokens,
            add_generation_prompt=add_generation_prompt,
        )

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Remove paths and URLs between the tags: images come beside the prompt."""
        collapsed: list[int] = self.context.hf_processor.collapse(token_ids)
        return collapsed

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptReplacement]:
        """One pad per embedding between the tags."""
        processor = self.context.hf_processor
        pad = self.context.tokenizer.convert_tokens_to_ids(IMAGE_PAD)

        def replacement(index: int) -> PromptUpdateDetails:
            return PromptUpdateDetails.select_token_id(
                processor.layout(mm_items["image"].num_embeddings(index)), embed_token_id=pad
            )

        return [PromptReplacement("image", target=f"{IMAGE_START}{IMAGE_PAD}{IMAGE_END}", replacement=replacement)]

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Return the model, with the stop tokens of the family's own `chat`.

        Raises:
            CheckpointError: a file is broken or of another checkpoint.
        """
        from corellm_qwen_vl.original.model import load_model

        config = self.context.hf_config
        start, stated = self.context.tokenizer.convert_tokens_to_ids(IMAGE_START), config.visual["image_start_id"]
        if start != stated:
            raise CheckpointError(
                f"{load_config.model_path}: config.json says {IMAGE_START} is token {stated}, by qwen.tiktoken it is "
                f"{start}; the files are of different checkpoints"
            )
        model = load_model(config, load_config)
        if config.chat_format == "chatml":  # beside the tokenizer's eos_token
            stops = self.context.tokenizer.convert_tokens_to_ids([IM_START, IM_END])
            model.generation_config.eos_token_id = stops
        return model

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """`[images, 256, hidden_size]`."""
        embeddings: Tensor = model.visual(mm_kwargs["pixel_values"])
        return embeddings
