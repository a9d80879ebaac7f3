"""Fuyu for corellm: `FuyuForCausalLM`, a Persimmon decoder that reads an image's patches as it reads words.

A prompt has no placeholder. The image goes before it, row by row: an image token per patch, a newline token after
each row, and `<s>` at the end; only the image tokens take embeddings, one linear layer's. After the prompt comes the
beginning-of-answer token. Prompts without an image are not changed.

Images are resized and cut, and tokens placed, as by `FuyuProcessor` of transformers. It pairs each text with one
image and mixes the patches of a second one into the first, so the limit is one image per prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptIndexTargets,
    PromptInsertion,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Fuyu"]

_BEGIN_TEXT = "<s>"
_BEGIN_ANSWER = "<0x04>"


class Fuyu:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {"image_patches": MultiModalFieldConfig.batched("image")}
    refuse_embeddings = "they do not say how long the image's rows are"

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self._added: tuple[list[int], list[int]] | None = None

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Transformers' processor, which fails without torchvision in some of its releases."""
        from corellm_fuyu.processor import load_processor

        return load_processor

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """The largest size; larger images are shrunk to it."""
        from transformers.image_processing_utils import get_size_dict

        limit = self.context.kwargs_for("image").get("size", self.context.hf_processor.image_processor.size)
        size = get_size_dict(limit)
        width, height = (size.get(side, 1) for side in ("width", "height"))  # other keys are refused with the dummy
        bounds = mm_options.get("image")
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height, bounds=bounds)}

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        r"""Without a template the form of Fuyu's training: `question\n`, `<0x04>`, the assistant's text."""
        if chat_template:
            return None
        media = collect_media(messages)
        prompt = ""
        for message in messages:
            if message["role"] == "assistant":
                prompt += _BEGIN_ANSWER
            prompt += "".join(part["text"] for part in message["content"] if part["type"] == "text") + "\n"
        if add_generation_prompt and "image" not in media:  # apply_hf_processor_tokens_only adds it
            prompt += _BEGIN_ANSWER
        return ChatPrompt(prompt, media)

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """In a prompt with an image, remove the tokenizer's prefix and end with the beginning-of-answer token."""
        if not mm_counts:
            return token_ids
        prefix, answer = self._added_tokens()
        if prefix and token_ids[: len(prefix)] == prefix:
            token_ids = token_ids[len(prefix) :]
        if not token_ids:
            return [*answer]  # without text, a word mark precedes it
        tokenizer, last = self.context.tokenizer, token_ids[-1]
        if last == answer[-1]:  # complete: of a conversation, or token ids that were made so
            return token_ids
        if last in tokenizer.added_tokens_decoder:  # the tokenizer begins anew behind it, maybe with a word mark
            end = tokenizer.convert_ids_to_tokens(last) + _BEGIN_ANSWER
            return [*token_ids[:-1], *tokenizer(end, add_special_tokens=False)["input_ids"]]
        return [*token_ids, answer[-1]]

    def _added_tokens(self) -> tuple[list[int], list[int]]:
        """The tokenizer's prefix of every text, and the tokens of the beginning of an answer as a text of its own."""
        if self._added is None:
            tokenizer = self.context.tokenizer
            answer = tokenizer(_BEGIN_ANSWER, add_special_tokens=False)["input_ids"]
            self._added = tokenizer("")["input_ids"], answer
        return self._added

    @hookimpl(wrapper=True)
    def call_hf_processor(self) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """The patches as `[1, rows, columns, values]`; the processor flattens them, a single one to a vector."""
        outputs = yield
        patches = outputs["image_patches"]
        rows = int((outputs["input_ids"] == self.context.hf_processor.image_newline_id).sum())
        return {"image_patches": patches.reshape(1, rows, -1, patches.shape[-1])}

    @hookimpl
    def get_prompt_updates(self, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]) -> list[PromptInsertion]:
        """The image's block before the prompt."""
        processor = self.context.hf_processor
        begin_text = self.context.tokenizer.convert_tokens_to_ids(_BEGIN_TEXT)

        def block(index: int) -> PromptUpdateDetails:
            rows, columns = out_mm_kwargs["image"][index]["image_patches"].data.shape[:2]
            row = [processor.image_token_id] * columns + [processor.image_newline_id]
            return PromptUpdateDetails.select_token_id([*row * rows, begin_text], processor.image_token_id)

        return [PromptInsertion("image", PromptIndexTargets.start(), block)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """One linear layer: `[patches, hidden_size]` per image."""
        return [model.model.vision_embed_tokens(patches.flatten(0, 1)) for patches in mm_kwargs["image_patches"]]
