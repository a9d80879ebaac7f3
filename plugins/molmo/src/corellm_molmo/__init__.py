"""Molmo for corellm: `MolmoForCausalLM`, whose checkpoints come with code that is never run.

A prompt begins with the end-of-text token; then comes the image, shrunk as a whole and in overlapping crops, then the
text. `<im_patch>` tokens take embeddings, added to their own; `<im_col>` ends a row. Configuration, processor and
vision tower are here; the text decoder is transformers' Qwen2 (7B-D, 72B) or OLMo 2 (7B-O).

Images are cut, and tokens placed, as by the published processor. It mixes the patches of a second image into the
first's, so the limit is one image per prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import LoadConfig, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptIndexTargets,
    PromptInsertion,
    PromptUpdateDetails,
    dummy_images,
)
from corellm_molmo.config import load_config as load_molmo_config
from corellm_molmo.tokenizer import IMAGE_PATCH, beginning, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Molmo"]

_BATCHED = MultiModalFieldConfig.batched("image")


class Molmo:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"image": 1}
    placeholders = {"image": ""}
    mm_fields_config = dict.fromkeys(("images", "image_masks", "image_input_idx", "image_tokens"), _BATCHED)
    refuse_embeddings = "they do not say how many rows and columns of crops the image has"

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return the configuration factory; transformers has no `molmo`."""
        return load_molmo_config

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return the tokenizer factory, which lets texts begin as the published processor does."""
        return load_tokenizer

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the processor factory; transformers has none."""
        from corellm_molmo.processor import MolmoProcessor

        def make(path: Path) -> MolmoProcessor:
            return MolmoProcessor(path, self.context.tokenizer, self.context.hf_config.vision)

        return make

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """An image of the most crops; of those with as many, a tall one has the most rows, which end with a token."""
        largest = self.context.hf_processor.image_processor.largest
        width, height = largest(mm_options.get("image", {}), self.context.kwargs_for("image").get("max_crops"))
        return {"image": dummy_images(mm_counts.get("image", 0), width=width, height=height)}

    @hookimpl
    def get_prompt_updates(self, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]) -> list[PromptInsertion]:
        """The image's tokens after the prompt's first token."""
        tokenizer = self.context.tokenizer
        patch = tokenizer.convert_tokens_to_ids(IMAGE_PATCH)

        def insertion(index: int) -> PromptUpdateDetails:
            tokens = out_mm_kwargs["image"][index]["image_tokens"].data.tolist()
            return PromptUpdateDetails.select_token_id(tokens, patch)

        begin = PromptIndexTargets.prefix([beginning(tokenizer)])
        return [PromptInsertion("image", target, insertion) for target in (begin, PromptIndexTargets.start())]

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Return the model.

        Raises:
            CheckpointError: a file is broken, or a weight is missing, misshapen or has no place.
        """
        from corellm_molmo.model import load_model

        return load_model(self.context.hf_config, load_config)

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower, pooling, projection, plus the embedding of the token below: `[patches, hidden_size]` per image."""
        import torch

        indices = [index.flatten() for index in mm_kwargs["image_input_idx"]]  # negative for patches without a token
        crops, masks = torch.cat(list(mm_kwargs["images"])), torch.cat(list(mm_kwargs["image_masks"]))
        embeddings = model.vision_backbone(crops, masks, torch.cat(indices) >= 0)
        embeddings += model.get_input_embeddings().weight[self.context.tokenizer.convert_tokens_to_ids(IMAGE_PATCH)]
        places = [index[index >= 0] for index in indices]
        by_image = embeddings.split([len(place) for place in places])
        return [rows[place.argsort()] for rows, place in zip(by_image, places, strict=True)]
