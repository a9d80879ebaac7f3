"""InstructBLIP for corellm: `InstructBlipForConditionalGeneration` with a decoder for its text model (Vicuna, OPT).

BLIP-2 whose Q-Former reads the prompt, too, as an instruction what to look for: the same image becomes other
embeddings beside another question. Knows the Q-Former's tokenizer and its limits; everything else is BLIP-2's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, ProcessorKwargsError, PromptTooLongError
from corellm.hookspecs import ChatPrompt, hookimpl
from corellm.multimodal import MultiModalFieldConfig, check_processor_kwargs, check_sizes, collect_media
from corellm_blip2 import Blip2

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["INSTRUCTION", "InstructBlip"]

INSTRUCTION = "qformer_text"
"""The processor argument with the text that the Q-Former reads."""


class InstructBlip(Blip2):
    """The adapter."""

    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("image"),  # [images, channels, height, width]
        "qformer_input_ids": MultiModalFieldConfig.batched("image"),  # [images, tokens], or one [tokens] per image
    }
    served = "Vicuna (Salesforce/instructblip-vicuna-7b)"

    @hookimpl
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """The conversation's texts, each on a line; nothing begins the model's.

        It was trained on single instructions, without any mark.
        """
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def get_item_kwargs(self, token_ids: Sequence[int]) -> Mapping[str, Any]:
        """The instruction: the prompt's text, without the token that the tokenizer begins every text with."""
        tokenizer = self.context.tokenizer
        begins = bool(token_ids) and token_ids[0] == tokenizer.bos_token_id
        return {INSTRUCTION: tokenizer.decode(list(token_ids[begins:]), clean_up_tokenization_spaces=False)}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The image's pixels, and the instruction's tokens.

        Raises:
            ProcessorKwargsError: an argument is unknown, larger than planned for, or does not fit the image.
            PromptTooLongError: the Q-Former has no positions for the instruction.
        """
        processor, arguments = self.context.hf_processor, dict(mm_kwargs)
        instruction = arguments.pop(INSTRUCTION)
        check_processor_kwargs(processor, arguments)
        check_sizes(processor, "image", self.context.kwargs_for("image"), arguments)
        tokens = self.instruction_tokens(instruction)
        try:
            pixels = processor(images=list(mm_data["image"]), return_tensors="pt", **arguments)
        except Exception as error:
            if isinstance(error, CorellmError) or not arguments:
                raise
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {arguments} does not fit this image: {' '.join(str(error).split())}",
                got=arguments,
            ) from error
        return {**pixels, "qformer_input_ids": [tokens]}

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower, Q-Former, projection: `[queries, hidden_size]` per image.

        Images whose instructions have as many tokens go through the Q-Former together: it needs no padding then, and
        none depends on the others.
        """
        import torch

        seen = model.vision_model(mm_kwargs["pixel_values"], interpolate_pos_encoding=True).last_hidden_state
        instructions: Sequence[Tensor] = mm_kwargs["qformer_input_ids"]
        alike: dict[int, list[int]] = {}
        for i, tokens in enumerate(instructions):
            alike.setdefault(len(tokens), []).append(i)
        embeddings: dict[int, Tensor] = {}
        for members in alike.values():
            queries = model.query_tokens.expand(len(members), -1, -1)
            read = model.qformer(
                input_ids=torch.stack([instructions[i] for i in members]),
                query_embeds=queries,
                encoder_hidden_states=torch.stack([seen[i] for i in members]),
            ).last_hidden_state  # [members, queries and tokens, width]
            embeddings |= zip(members, model.language_projection(read[:, : queries.shape[1]]), strict=True)
        return [embeddings[i] for i in range(len(instructions))]

    def instruction_tokens(self, instruction: Any) -> list[int]:
        """An instruction for the Q-Former; what looks like a special token of its own is text.

        Raises:
            ProcessorKwargsError: a request's own instruction is no text.
            PromptTooLongError: it is too long.
        """
        if not isinstance(instruction, str):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {INSTRUCTION} must be text, got {instruction!r:.80}", got=instruction
            )
        tokenizer = self.context.hf_processor.qformer_tokenizer
        tokens: list[int] = tokenizer(instruction, split_special_tokens=True, verbose=False)["input_ids"]
        most = self.context.hf_config.qformer_config.max_position_embeddings
        if len(tokens) > most:
            raise PromptTooLongError(
                f"the Q-Former reads the prompt as {len(tokens)} tokens, and {most} at most; shorten it, or give "
                f"mm_processor_kwargs={{{INSTRUCTION!r}: ...}}, what it reads instead"
            )
        return tokens
