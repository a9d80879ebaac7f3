"""Florence-2 for corellm: `Florence2ForConditionalGeneration`, an encoder-decoder.

The encoder (BART's) reads the image's tokens and then the text between `<s>` and `</s>`; the decoder writes the output.
The text may be the name of a task, such as `<OD>`, which the processor writes out; how is in `tasks`. One image per
prompt, without a placeholder. Does not read the output's boxes: the processor's `post_process_generation` does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    PromptIndexTargets,
    PromptInsertion,
    collect_media,
    dummy_images,
)
from corellm_florence2.tasks import Tasks

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Florence2"]

_CHANGE_SIZE = frozenset({"crop_size", "do_center_crop", "do_pad", "do_resize", "pad_size", "size"})


class Florence2:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, channels, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @cached_property
    def _tasks(self) -> Tasks:
        return Tasks(self.context.hf_processor)

    @hookimpl
    def load_model(self) -> None:
        """Refuse what cannot be served before weights are read; the core's default then loads them.

        Raises:
            CheckpointError: the processor and the model disagree about the image's token.
        """
        stated, known = self.context.hf_config.image_token_id, self.context.hf_processor.image_token_id
        if stated != known:
            raise CheckpointError(
                f"{self.context.model_path}: the image's token is {known} in the processor and {stated} in "
                f"config.json; make image_token_id there {known}"
            )

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_processor.image_processor.size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size["width"], height=size["height"])}

    @hookimpl(wrapper=True)
    def call_hf_processor(self, mm_kwargs: Mapping[str, Any]) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse what changes an image's size: the processor states one number of tokens for all."""
        if refused := sorted(mm_kwargs.keys() & _CHANGE_SIZE):
            raise ProcessorKwargsError(f"mm_processor_kwargs: {', '.join(refused)}: images must have the tower's size")
        return (yield)

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """A task's text for its name; beside an image `<s>` and `</s>` around the text, else none."""
        tokenizer = self.context.tokenizer
        start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        first, last = token_ids[:1] == [start], token_ids[-1:] == [end]
        text = self._tasks.written_out(token_ids[int(first) : len(token_ids) - int(last and len(token_ids) > first)])
        return [start, *text, end] if mm_counts else text

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """The conversation's texts, each on a line: the model was trained on single questions and knows no turns."""
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptInsertion]:
        """As many image tokens as the processor states, at the very start."""
        processor = self.context.hf_processor

        def insertion(index: int) -> list[int]:
            return [processor.image_token_id] * (mm_items["image"].num_embeddings(index) or processor.num_image_tokens)

        return [PromptInsertion("image", PromptIndexTargets.start(), insertion)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower and projector: `[images, tokens, hidden_size]`, one token for the mean and one per patch."""
        embeddings: Tensor = model.get_image_features(mm_kwargs["pixel_values"]).pooler_output
        return embeddings
