"""Kosmos-2 for corellm: `Kosmos2ForConditionalGeneration`, a decoder whose texts name places in an image.

An image becomes the outputs of latent queries, always the same number. They stand between `<image>` and `</image>`,
right behind BOS; the text has no placeholder for them. One image per prompt, as `Kosmos2Processor` of transformers
pairs each text with one. Knows what Kosmos-2's processor writes; what Kosmos-2.5 does alike is in `family`, how the
decoder runs in `decoder`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalFieldConfig, dummy_images
from corellm_kosmos2.family import Kosmos

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Kosmos2"]

_BEGIN, _END = "<image>", "</image>"
_BOXES = "<phrase>a dog</phrase><object><patch_index_0044><patch_index_0863></object>"


class Kosmos2(Kosmos):
    """The adapter."""

    mm_fields_config = {
        "pixel_values": MultiModalFieldConfig.batched("image"),  # [images, channels, height, width]
        "image_embeds_position_mask": None,  # `get_prompt_updates`
    }
    processor = "Kosmos2Processor"
    refused = {
        "bboxes": f"boxes are text: write them into the prompt, as in {_BOXES}",
        "num_image_tokens": "it is the model's number of latent queries; leave it out",
        "first_image_token_id": "no token of a text stands for an image here; leave it out",
    }

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
        self._refuse(mm_kwargs)
        return (yield)

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int], mm_counts: Mapping[str, int]) -> list[int]:
        """Begin with BOS, and leave out EOS, which the tokenizer adds, and a space at the end.

        Behind an image a space follows, which shows as a token of its own where no word begins.

        Raises:
            AlreadyExpandedError: the prompt has the tokens that transformers' processor puts in an image's place.
        """
        tokenizer, text = self.context.tokenizer, self._behind_bos(token_ids)
        if text[-1:] == [tokenizer.eos_token_id]:
            del text[-1]
        while self._space and text[-1:] == self._space:
            del text[-1]
        if mm_counts and (not text or text[0] in self._keeping_space):
            text = [*self._space, *text]
        return [tokenizer.bos_token_id, *text]

    def _written_places(self) -> Sequence[int]:
        """The tokens that transformers' processor writes where an image's embeddings go."""
        first: int = self.context.tokenizer.unk_token_id + 1
        return range(first, first + self.context.hf_config.latent_query_num)

    def _marks(self) -> list[str]:
        """The tokens before and behind an image's embeddings.

        Raises:
            CheckpointError: the tokenizer lacks them.
        """
        marks, vocabulary = [_BEGIN, _END], self.context.tokenizer.get_vocab()
        if lacking := [token for token in marks if token not in vocabulary]:
            raise CheckpointError(
                f"{self.context.model_path}: the tokenizer does not know {' and '.join(lacking)}, around an image; "
                "Kosmos2Processor adds them: save it into the checkpoint's directory"
            )
        return marks

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
