"""BLIP for corellm: `BlipForConditionalGeneration`, a tower and a decoder of BERT's kind that attends to its outputs.

An image is one token of the prompt, the one that begins captions; a text goes on behind it. The tower's outputs are
states, which every token sees. How the decoder runs is in `decoder`. One image per prompt, as in training. Knows no
BLIP that answers questions or compares texts with images: those have an encoder of text, too.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    DataParser,
    MultiModalFeature,
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptIndexTargets,
    PromptInsertion,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalItems

__all__ = ["Blip"]


class Blip:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}  # [images, channels, height, width]

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self._begin: int = context.hf_config.text_config.bos_token_id
        self._tower_width: int = context.hf_config.vision_config.hidden_size

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def get_data_parser(self) -> DataParser:
        """Precomputed embeddings are as wide as the tower's outputs, which may be wider than the text."""
        return DataParser(hidden_size=self._tower_width)

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """The conversation's texts, each on a line: the model was trained on captions and knows no turns."""
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """Without `[SEP]`, which ends what the model writes, and beside an image without `[CLS]`, as in `generate`.

        The image's token takes its place. The tokenizer puts both around every text.
        """
        tokenizer = self.context.tokenizer
        text = token_ids[:-1] if token_ids[-1:] == [tokenizer.sep_token_id] else token_ids
        return text[1:] if mm_counts and text[:1] in ([tokenizer.cls_token_id], [self._begin]) else text

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptInsertion]:
        """The token that begins captions, with a state for each of the tower's outputs; BLIP has no image token."""

        def insertion(index: int) -> list[int] | PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index)
            if count is None:
                count = self._num_outputs(out_mm_kwargs["image"][index]["pixel_values"].data)
            return PromptUpdateDetails([self._begin], num_states=count) if count else []

        return [PromptInsertion("image", PromptIndexTargets.start(), insertion)]

    def _num_outputs(self, pixel_values: Tensor) -> int:
        """Number of the tower's outputs for one image `[channels, height, width]`; none if it has no patch."""
        side: int = self.context.hf_config.vision_config.patch_size
        height, width = pixel_values.shape[-2:]
        patches: int = (height // side) * (width // side)
        return patches + 1 if patches else 0  # the class token's comes first

    @hookimpl
    def get_visible_states(self, mm_features: Sequence[MultiModalFeature]) -> list[tuple[int, int, int]]:
        """All of the image, from its token on."""
        (image,) = mm_features
        return [(image.placeholder.offset, 0, image.placeholder.num_embeds)]

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def load_model(self) -> Generator[None, Any, Any]:
        """What the core's default loads; a caption ends with `[SEP]`, which only BLIP's own `generate` says."""
        model = yield
        model.generation_config.eos_token_id = self.context.hf_config.text_config.sep_token_id
        return model

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text's embeddings and layers."""
        from corellm_blip.decoder import Decoder

        return Decoder(model.text_decoder.bert)

    @hookimpl
    def get_multimodal_embedding_width(self) -> int:
        """The tower's: layers project states themselves."""
        return self._tower_width

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """The tower's outputs: `[images, outputs, width]`.

        Positions are interpolated for requests with another `size`; at the tower's own size they do not change.
        """
        seen: Tensor = model.vision_model(mm_kwargs["pixel_values"], interpolate_pos_encoding=True).last_hidden_state
        return seen

    @hookimpl
    def get_encoder_states(self, inputs_embeds: Tensor) -> Tensor:
        """The image's embeddings."""
        return inputs_embeds

    @hookimpl
    def compute_logits(self, model: Any, hidden_states: Tensor) -> Tensor:
        """Logits by BERT's head, which has a layer before the output layer."""
        logits: Tensor = model.text_decoder.cls(hidden_states)
        return logits
