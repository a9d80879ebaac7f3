"""Kosmos-2 for corellm: `Kosmos2ForConditionalGeneration`, a decoder whose texts name places in an image.

An image becomes the outputs of latent queries, always the same number. They stand between `<image>` and `</image>`,
right behind BOS; the text has no placeholder for them. One image per prompt, as `Kosmos2Processor` of transformers
pairs each text with one. Knows the tokens of a prompt; how the decoder runs is in `decoder`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import AlreadyExpandedError, CheckpointError, ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    PromptIndexTargets,
    PromptInsertion,
    PromptUpdateDetails,
    collect_media,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalItems

__all__ = ["Kosmos2"]

_BEGIN, _END = "<image>", "</image>"
_BOXES = "<phrase>a dog</phrase><object><patch_index_0044><patch_index_0863></object>"
_REFUSED = {
    "bboxes": f"boxes are text: write them into the prompt, as in {_BOXES}",
    "num_image_tokens": "it is the model's number of latent queries; leave it out",
    "first_image_token_id": "no token of a text stands for an image here; leave it out",
}
"""`{argument of the processor's that belongs to text: what to do instead}`."""


class Kosmos2:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("image"),  # [images, channels, height, width]
        "image_embeds_position_mask": None,  # `get_prompt_updates`
    }

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    # --- an image ---------------------------------------------------------------------------------------------------

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is resized to the tower's size, so all are equally large."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size)}

    @hookimpl(wrapper=True)
    def call_hf_processor(self, mm_kwargs: Mapping[str, Any]) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse arguments that are not about the image.

        Raises:
            ProcessorKwargsError: says what to do instead.
        """
        for name in mm_kwargs.keys() & _REFUSED.keys():
            raise ProcessorKwargsError(f"mm_processor_kwargs: {name}: {_REFUSED[name]}", got=mm_kwargs[name])
        return (yield)

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """Without a template the texts of all messages, each on a line; the image goes before them.

        It was trained on single texts, without any mark of a role.
        """
        if chat_template:
            return None
        texts = ("".join(part["text"] for part in m["content"] if part["type"] == "text").strip() for m in messages)
        return ChatPrompt("\n".join(filter(None, texts)), collect_media(messages))

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """Begin with BOS, and leave out EOS, which the tokenizer adds, and a space at the end.

        Behind an image a space follows, which shows as a token of its own where no word begins.

        Raises:
            AlreadyExpandedError: the prompt has the tokens that transformers' processor puts in an image's place.
        """
        tokenizer = self.context.tokenizer
        text = list(token_ids[token_ids[:1] == [tokenizer.bos_token_id] :])
        self._refuse_expanded(text)
        if text[-1:] == [tokenizer.eos_token_id]:
            del text[-1]
        while self._space and text[-1:] == self._space:
            del text[-1]
        if mm_counts and (not text or text[0] in self._keeping_space):
            text = [*self._space, *text]
        return [tokenizer.bos_token_id, *text]

    def _refuse_expanded(self, text: Sequence[int]) -> None:
        begin, _, end = self._image_tokens
        first = self.context.tokenizer.unk_token_id + 1
        block = [begin, *range(first, first + self.context.hf_config.latent_query_num), end]
        if list(text[: len(block)]) == block:
            raise AlreadyExpandedError(
                f"the prompt has the {len(block)} tokens that Kosmos2Processor writes for an image; give the prompt "
                "without them, as text or token ids, and the image beside it",
                modality="image",
                item=0,
            )

    @hookimpl
    def get_prompt_updates(self, mm_items: MultiModalItems) -> list[PromptInsertion]:
        """The image's block behind BOS. The padding token takes the embeddings, as it belongs to no text.

        Transformers' processor writes ordinary tokens there, of a full stop and of words, and marks the places apart.
        """
        begin, place, end = self._image_tokens

        def block(index: int) -> PromptUpdateDetails:
            count = mm_items["image"].num_embeddings(index) or self.context.hf_config.latent_query_num
            return PromptUpdateDetails.select_token_id([begin, *[place] * count, end], place)

        behind_bos = PromptIndexTargets.prefix([self.context.tokenizer.bos_token_id])
        return [PromptInsertion("image", behind_bos, block)]

    @cached_property
    def _image_tokens(self) -> tuple[int, int, int]:
        """The tokens before, at and behind an image's embeddings."""
        tokenizer = self.context.tokenizer
        begin, end = tokenizer.convert_tokens_to_ids([_BEGIN, _END])
        return begin, tokenizer.pad_token_id, end

    @cached_property
    def _space(self) -> list[int]:
        """The token of a space that no word follows; none, where the tokenizer drops such a space."""
        return list(self.context.tokenizer(f"{_END} ", add_special_tokens=False)["input_ids"][1:])

    @cached_property
    def _keeping_space(self) -> frozenset[int]:
        """Special tokens before which a space remains, as they do not take it in."""
        added = self.context.tokenizer.added_tokens_decoder.items()
        return frozenset(token_id for token_id, token in added if not token.lstrip)

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl(wrapper=True)
    def load_model(self) -> Generator[None, Any, Any]:
        """Give the latent queries attention of their own: to all patches, and not by the text decoder's configuration.

        Up to transformers 5.22 they would see no patch behind them.

        Raises:
            CheckpointError: the tokenizer lacks the tokens around an image.
        """
        vocabulary = self.context.tokenizer.get_vocab()
        if lacking := [token for token in (_BEGIN, _END) if token not in vocabulary]:
            raise CheckpointError(
                f"{self.context.model_path}: the tokenizer does not know {' and '.join(lacking)}, around an image; "
                "Kosmos2Processor adds them: save it into the checkpoint's directory"
            )
        model = yield
        attention = model.image_to_text_projection.x_attn
        attention.config = deepcopy(attention.config)
        attention.config._attn_implementation = model.config._attn_implementation
        attention.is_causal = False
        return model

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text model, as the engine calls decoders."""
        from corellm_kosmos2.decoder import Decoder

        return Decoder(model.text_model.model)

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower and latent queries: `[images, queries, hidden_size]`.

        Positions are interpolated for requests with another `crop_size`; at the tower's own size they do not change.
        """
        from transformers import Kosmos2Model  # in 5.17 the only class with the method, which needs what both have

        features = Kosmos2Model.get_image_features(model, mm_kwargs["pixel_values"], interpolate_pos_encoding=True)
        embeddings: Tensor = features.pooler_output
        return embeddings
