"""PaliGemma for corellm: `PaliGemmaForConditionalGeneration`, with a Gemma decoder or, as PaliGemma 2, with Gemma 2.

A prompt is an image's tokens, BOS, a text and a line break. All of its tokens see each other; generated tokens see
those up to themselves. Positions count from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import MultiModalFieldConfig, PromptReplacement, collect_media, dummy_images

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["PaliGemma"]


class PaliGemma:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("image"),  # [images, channels, height, width]
        "labels": None,  # for training
    }

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self._compute_logits: Callable[[Any, Tensor], Tensor] | None = None

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The checkpoint's image token."""
        return str(self.context.hf_processor.image_token) if modality == "image" else None

    @hookimpl(wrapper=True)
    def call_hf_processor(self) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse arguments that make an image of another size than the tower's.

        Raises:
            ProcessorKwargsError: says which arguments to leave out.
        """
        outputs = yield
        size = self.context.hf_config.vision_config.image_size
        height, width = outputs["pixel_values"].shape[-2:]
        if (height, width) != (size, size):
            raise ProcessorKwargsError(
                f"the vision tower takes images of {size} x {size}, and the arguments of the processor make one of "
                f"{width} x {height}; leave out size and do_resize"
            )
        return outputs

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        r"""Without a template the form of PaliGemma's training: images, BOS, texts on lines of their own, `\n`."""
        if chat_template:
            return None
        media = collect_media(messages)
        images = self.context.hf_processor.image_token * len(media.get("image", ()))
        texts = ("".join(part["text"] for part in each["content"] if part["type"] == "text") for each in messages)
        return ChatPrompt(images + self.context.tokenizer.bos_token + "\n".join(texts) + "\n", media)

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Put BOS behind the last image and a line break at the end; a prompt that has both stays as it is.

        The processor takes no text alone. That becomes what a text behind images is: BOS, the text, a line break.
        """
        tokenizer, image = self.context.tokenizer, self.context.hf_processor.image_token_id
        prefix = tokenizer("")["input_ids"]  # checkpoints differ in whether their tokenizer adds BOS at the start
        if prefix and token_ids[: len(prefix)] == prefix:
            token_ids = token_ids[len(prefix) :]
        behind = len(token_ids) - token_ids[::-1].index(image) if image in token_ids else 0
        images, text = token_ids[:behind], token_ids[behind:]
        begun, ended = text[:1] == [tokenizer.bos_token_id], self._is_line_break(text[-1:])
        if not images:  # each by itself: BOS may have been the tokenizer's
            text = text if begun else [tokenizer.bos_token_id, *text]
            return text if ended else self._with_line_break(text)
        return token_ids if begun and ended else [*images, tokenizer.bos_token_id, *self._with_line_break(text)]

    def _with_line_break(self, tokens: list[int]) -> list[int]:
        """Add one at the end; several in a row are one token."""
        tokenizer, start = self.context.tokenizer, len(tokens)
        while self._is_line_break(tokens[start - 1 : start]):
            start -= 1
        breaks = tokenizer.decode(tokens[start:]) + "\n"
        return [*tokens[:start], *tokenizer(breaks, add_special_tokens=False)["input_ids"]]

    def _is_line_break(self, tokens: list[int]) -> bool:
        """Whether a list of one token is line breaks alone."""
        return {*"".join(self.context.tokenizer.convert_ids_to_tokens(tokens))} == {"\n"}

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptReplacement]:
        """The image token becomes one per embedding."""
        processor = self.context.hf_processor

        def replacement(index: int) -> list[int]:
            count = mm_items["image"].num_embeddings(index)
            return [processor.image_token_id] * (processor.image_seq_length if count is None else count)

        return [PromptReplacement("image", target=[processor.image_token_id], replacement=replacement)]

    @hookimpl
    def get_bidirectional_spans(self, token_ids: Sequence[int]) -> Sequence[tuple[int, int]]:
        """All tokens of a prompt see each other."""
        return [(0, len(token_ids))]

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_rope_positions(self, token_ids: Sequence[int]) -> tuple[Tensor, int]:
        """They count from 1; of text alone from 0, which shifts all alike and changes no output."""
        import torch

        return torch.arange(1, len(token_ids) + 1), 1

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower and projector: `[images, patches, hidden_size]`."""
        features: Tensor = model.get_image_features(mm_kwargs["pixel_values"]).pooler_output
        return features

    @hookimpl
    def compute_logits(self, model: Any, hidden_states: Tensor) -> Tensor:
        """As the model's own forward pass makes them: transformers caps Gemma 2's in newer releases."""
        if self._compute_logits is None:
            from corellm.modelling import logits_function

            self._compute_logits = logits_function(model)
        return self._compute_logits(model, hidden_states)
