"""The model: vision tower and projector beside a text decoder of transformers', and where each weight belongs.

Reads safetensors only, in one file or many. Every weight of the model is in the checkpoint, and the reverse, but for
the pooling head of the tower, which published checkpoints have and the model does not use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekOcr2TextModel, DeepseekV2Model, DeepseekV3Model, GenerationConfig

from corellm.hookspecs import LoadConfig
from corellm.modelling import load_published
from corellm_deepseek_vl2.vision import Projector, VisionTransformer, lay_out

_DECODERS = {model.config_class: model for model in (DeepseekOcr2TextModel, DeepseekV2Model, DeepseekV3Model)}
_UNUSED = "vision.attn_pool."
_IN_FLOAT32 = "e_score_correction_bias"
"""Added to scores of experts that are computed in float32; rounded, it would choose others."""


class DeepseekVLV2(nn.Module):
    """Vision tower, projector and text decoder, by the checkpoint's names.

    Args:
        config: the checkpoint's.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, text = config.projector_config["n_embed"], config.text_config
        self.vision = VisionTransformer(config.vision_config)
        self.projector = Projector(config.projector_config)
        self.image_newline = nn.Parameter(torch.empty(width))
        self.view_seperator = nn.Parameter(torch.empty(width))  # the published spelling
        head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.language = nn.ModuleDict({"model": _DECODERS[type(text)](text), "lm_head": head})
        self.whole_first = config.global_view_pos == "head"
        self.generation_config = GenerationConfig.from_model_config(text)

    def get_decoder(self) -> nn.Module:
        """The text decoder without its output layer."""
        return self.language["model"]

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table of text tokens."""
        decoder: Any = self.language["model"]
        embeddings: nn.Module = decoder.embed_tokens
        return embeddings

    def get_output_embeddings(self) -> nn.Module:
        """Hidden states to logits."""
        return self.language["lm_head"]

    def encode(self, pixel_values: Tensor, tiles: Tensor) -> list[Tensor]:
        """Return `[tokens, hidden_size]` for each image.

        Args:
            pixel_values: `[views of all images, 3, side, side]`.
            tiles: `[images, 2]`, across and down.
        """
        views = self.projector(self.vision(pixel_values))
        grids: list[tuple[int, int]] = [(columns, rows) for columns, rows in tiles.tolist()]
        each = views.split([1 + columns * rows for columns, rows in grids])
        marks = {"newline": self.image_newline, "divider": self.view_seperator, "whole_first": self.whole_first}
        return [lay_out(views, *grid, **marks) for views, grid in zip(each, grids, strict=True)]


def load_model(config: Any, load_config: LoadConfig) -> DeepseekVLV2:
    """Make the model and load its weights; with `load_format="dummy"` they stay random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """

    def make() -> DeepseekVLV2:
        model = DeepseekVLV2(config).to(load_config.dtype)
        for gate in model.modules():
            if hasattr(gate, _IN_FLOAT32):
                setattr(gate, _IN_FLOAT32, getattr(gate, _IN_FLOAT32).float())
        return model

    model = load_published(
        make, load_config, weights=published_weights, names=lambda name: () if name.startswith(_UNUSED) else (name,)
    )
    if (load_config.model_path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(load_config.model_path)
    return model


def published_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return `{name in a checkpoint: the model's memory for it}`: experts lie apart there, and in one tensor here."""
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        prefix, joined, part = name.partition(".mlp.experts.")
        if not joined:
            weights[name] = tensor
            continue
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
        for number, expert in enumerate(tensor):
            for own, rows in zip(parts, expert.chunk(len(parts)), strict=True):
                weights[f"{prefix}.mlp.experts.{number}.{own}.weight"] = rows
    return weights
