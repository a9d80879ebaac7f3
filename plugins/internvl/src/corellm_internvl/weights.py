"""The model with a published checkpoint's weights: transformers' InternVL, and where each weight belongs in it.

Reads safetensors only, in one file or many; reads no pickle. Every weight of the model is in the checkpoint, and the
reverse.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import transformers
from torch import Tensor, nn

from corellm.hookspecs import LoadConfig
from corellm.modelling import load_published, renamed

_TOWER = "model.vision_tower."
_IN_LAYER = {
    "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attn.q_norm": ("attention.q_norm",),
    "attn.k_norm": ("attention.k_norm",),
    "attn.proj": ("attention.projection_layer",),
    "norm1": ("layernorm_before",),
    "norm2": ("layernorm_after",),
    "ls1": ("lambda_1",),
    "ls2": ("lambda_2",),
    "mlp.fc1": ("mlp.fc1",),
    "mlp.fc2": ("mlp.fc2",),
}
_NAMES = {
    r".*\.rotary_emb\.inv_freq$": (),  # constants in older checkpoints, computed here
    **{
        rf"vision_model\.encoder\.layers\.(\d+)\.{re.escape(part)}(?=\.|$)": [
            rf"{_TOWER}encoder.layer.\1.{own}" for own in ours
        ]
        for part, ours in _IN_LAYER.items()
    },
    r"vision_model\.embeddings\.class_embedding": f"{_TOWER}embeddings.cls_token",
    r"vision_model\.embeddings\.position_embedding": f"{_TOWER}embeddings.position_embeddings",
    r"vision_model\.embeddings\.patch_embedding\.": f"{_TOWER}embeddings.patch_embeddings.projection.",
    r"vision_model\.": _TOWER,
    r"mlp1\.0\.": "model.multi_modal_projector.layer_norm.",
    r"mlp1\.1\.": "model.multi_modal_projector.linear_1.",
    r"mlp1\.3\.": "model.multi_modal_projector.linear_2.",
    r"language_model\.lm_head\.": "lm_head.",
    r"language_model\.model\.": "model.language_model.",
}


def load_model(config: Any, load_config: LoadConfig) -> nn.Module:
    """Return transformers' model with the checkpoint's weights; with `load_format="dummy"` they are random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    attention = {"text_config": load_config.attn_implementation, "vision_config": "sdpa"}

    def make() -> Any:
        return transformers.InternVLForConditionalGeneration._from_config(
            deepcopy(config), dtype=load_config.dtype, attn_implementation=attention
        )

    unused = {r"language_model\.lm_head\.": ()} if config.tie_word_embeddings else {}
    model: Any = load_published(make, load_config, weights=loaded_weights, names=renamed({**unused, **_NAMES}))
    if (load_config.model_path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(load_config.model_path)
    loaded: nn.Module = model
    return loaded


def loaded_weights(model: Any) -> dict[str, Tensor]:
    """Return the model's weights by transformers' names, an output layer that is the embedding table as that."""
    model.tie_weights()
    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    return weights
