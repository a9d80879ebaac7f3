"""Llama 3.2 Vision for corellm: `MllamaForConditionalGeneration`.

An image is one token of the prompt. Some layers of the decoder attend to images instead of text: each token sees the
last image before it, or the last ones, if they stand side by side. How the decoder runs is in `decoder`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.multimodal import MultiModalFieldConfig, PromptReplacement, PromptUpdateDetails, dummy_images

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalFeature

__all__ = ["Mllama"]

_HEADER = "<|start_header_id|>"


class Mllama:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": None}
    refuse_embeddings = "they do not tell which of an image's states are of tiles that it has, and which are padding"

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        vision = context.hf_config.vision_config
        self._max_tiles: int = vision.max_num_tiles
        self._per_tile: int = (vision.image_size // vision.patch_size) ** 2 + 1

    @hookimpl
    def get_placeholder_str(self, modality: str) -> str | None:
        """The checkpoint's image token."""
        return str(self.context.hf_processor.image_token) if modality == "image" else None

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is filled up to the most tiles, so all have as many states."""
        size = self.context.hf_config.vision_config.image_size
        return {"image": dummy_images(mm_counts.get("image", 0), width=size, height=size * self._max_tiles)}

    @hookimpl(wrapper=True)
    def call_hf_processor(self) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """Refuse arguments that make other tiles than the tower takes.

        Raises:
            ProcessorKwargsError: says which arguments to leave out.
        """
        outputs = yield
        size = self.context.hf_config.vision_config.image_size
        tiles, _, height, width = outputs["pixel_values"].shape[2:]
        if (tiles, height, width) != (self._max_tiles, size, size):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs make {tiles} tiles of {width} x {height} pixels of an image, but the tower takes "
                f"{self._max_tiles} of {size} x {size}; leave out size and max_image_tiles"
            )
        return outputs

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig | None]:
        """Images are counted by dimension 1, behind that of prompts."""
        names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
        ones = [1] * hf_inputs["pixel_values"].shape[1]
        by_image = {name: MultiModalFieldConfig.flat_from_sizes("image", ones, dim=1) for name in names}
        return {**by_image, "cross_attention_mask": None}  # `get_visible_states`

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Put BOS behind leading images, if the text has none; a conversation's template writes its own.

        A tokenizer that adds BOS does so before the processor's, as in transformers.
        """
        bos, header = (self.context.tokenizer.convert_tokens_to_ids(token) for token in (self._bos, _HEADER))
        first = int(self._adds_bos and token_ids[:1] == [bos])
        if bos in token_ids[first:] or token_ids[first : first + 1] == [header]:
            return token_ids
        while token_ids[first : first + 1] == [self.context.hf_processor.image_token_id]:
            first += 1
        return [*token_ids[:first], bos, *token_ids[first:]]

    @hookimpl
    def get_prompt_updates(self) -> list[PromptReplacement]:
        """The image's token stays as it is; states are of all tiles, with those that are padding."""
        image = [self.context.hf_processor.image_token_id]
        states = PromptUpdateDetails(image, num_states=self._max_tiles * self._per_tile)
        return [PromptReplacement("image", image, states)]

    @hookimpl
    def get_visible_states(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> list[tuple[int, int, int]]:
        """From an image's token on, its tiles, and those of images right before it; no padding."""
        visible: list[tuple[int, int, int]] = []
        end = 0
        for feature in mm_features:
            token, start = feature.placeholder.offset, end
            end += self._own_states(feature)
            if visible and visible[-1][0] == token - 1:
                start = visible[-1][1]
            visible.append((token, start, end))
        return visible

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text model, as the engine calls decoders."""
        from corellm_mllama.decoder import Decoder

        return Decoder(model.model.language_model)

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """Tower and projector: `[images, tiles * states of a tile, hidden_size]`."""
        import torch

        tower, project = model.model.vision_model, model.model.multi_modal_projector
        images = zip(*(tensor.split(1, dim=1) for tensor in mm_kwargs.values()), strict=True)
        # one by one: a request's images are encoded in one step, however many they are
        states = [project(tower(**dict(zip(mm_kwargs, image, strict=True))).last_hidden_state) for image in images]
        return torch.cat([state.flatten(0, -2)[None] for state in states])

    @hookimpl
    def get_encoder_states(self, inputs_embeds: Tensor, mm_features: Sequence[MultiModalFeature]) -> Tensor:
        """The tiles of all images, then all padding: images side by side have one range of states."""
        import torch

        images = inputs_embeds.view(len(mm_features), -1, inputs_embeds.shape[-1])
        own = [self._own_states(feature) for feature in mm_features]
        parts = [(image[:count], image[count:]) for image, count in zip(images, own, strict=True)]
        return torch.cat([*(tiles for tiles, _ in parts), *(padding for _, padding in parts)])

    def _own_states(self, feature: MultiModalFeature) -> int:
        """Return how many states of an image are no padding."""
        return int(feature.data["aspect_ratio_mask"].data.sum()) * self._per_tile

    @cached_property
    def _bos(self) -> str:
        return str(self.context.tokenizer.bos_token)

    @cached_property
    def _adds_bos(self) -> bool:
        """Whether the tokenizer begins every text with BOS."""
        tokenizer = self.context.tokenizer
        return list(tokenizer("")["input_ids"][:1]) == [tokenizer.bos_token_id]
