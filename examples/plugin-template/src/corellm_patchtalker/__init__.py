"""PatchTalker for corellm: a Llama that takes an image's patches, row by row, as it takes words.

In the prompt an image is `<image>`, and becomes `<image>` once per patch with `<row>` after each row of patches. The
patches take embeddings, one linear layer's; `<row>` is a token like any other. Images have any shape, and any number
of them may be in a prompt.

transformers does not have this model, so its configuration (`config`), processor (`processor`) and model (`model`) are
here, too. This module is the adapter. It must import neither torch nor transformers, so that `corellm plugins` and the
front end stay light; the hooks import what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import LoadConfig, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFieldConfig,
    MultiModalKwargsItem,
    PromptReplacement,
    PromptUpdateDetails,
    dummy_images,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PatchTalker"]


class PatchTalker:
    """The adapter: one instance per loaded model."""

    contract = 1
    supported_mm_limits = {"image": None}
    placeholders = {"image": "<image>\n"}
    refuse_embeddings = "they do not say how long the image's rows are"

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    # --- what transformers does not have ------------------------------------------------------------------------------

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return our configuration class. Static: it is called before there is a model."""
        from corellm_patchtalker.config import PatchTalkerConfig

        return PatchTalkerConfig

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return transformers' class, which `AutoTokenizer` finds, too, but with a warning about the configuration."""
        from transformers import PreTrainedTokenizerFast

        tokenizer_class: Callable[..., Any] = PreTrainedTokenizerFast
        return tokenizer_class

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return a factory of our processor."""
        from corellm_patchtalker.processor import PatchTalkerProcessor

        config, kwargs = self.context.hf_config, self.context.kwargs_for("image")
        return lambda path: PatchTalkerProcessor(
            self.context.tokenizer, config.patch_size, kwargs.get("max_patches", config.max_patches)
        )

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Return our model with its weights."""
        from corellm_patchtalker.model import load_model

        return load_model(self.context.hf_config, load_config)

    # --- what it takes ------------------------------------------------------------------------------------------------

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """One patch wide, with the most patches: each has its own `<row>`, so no image becomes more tokens."""
        processor = self.context.hf_processor
        high = processor.patch_size * processor.max_patches
        return {"image": dummy_images(mm_counts.get("image", 0), width=processor.patch_size, height=high)}

    # --- one image's tensors, and its place in the prompt -----------------------------------------------------------

    @hookimpl
    def get_mm_fields_config(self, hf_inputs: Mapping[str, Any]) -> Mapping[str, MultiModalFieldConfig]:
        """`patches` is `[patches of all images, values]`; `grids` is `[images, 2]`, rows and columns of each."""
        return {
            "patches": MultiModalFieldConfig.flat_from_sizes("image", hf_inputs["grids"].prod(-1)),
            "grids": MultiModalFieldConfig.batched("image"),
        }

    @hookimpl
    def get_prompt_updates(
        self, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The placeholder becomes rows, whose image tokens take embeddings."""
        processor = self.context.hf_processor

        def rows(index: int) -> PromptUpdateDetails:
            grid = out_mm_kwargs["image"][index]["grids"].data.tolist()
            return PromptUpdateDetails.select_token_id(processor.layout(*grid), processor.image_token_id)

        return [PromptReplacement("image", target=[processor.image_token_id], replacement=rows)]

    # --- in the worker ------------------------------------------------------------------------------------------------

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Sequence[Tensor]:
        """One linear layer over the patches of all images: `[patches, hidden_size]` per image."""
        import torch

        return torch.split(model.projection(mm_kwargs["patches"]), mm_kwargs["grids"].prod(-1).tolist())
