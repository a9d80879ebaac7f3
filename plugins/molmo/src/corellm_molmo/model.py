"""The model: the vision tower beside transformers' Qwen2 or OLMo 2, and where the checkpoint's weights belong in it.

Reads safetensors only, in one file or many. Every weight of the model is in the checkpoint, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from corellm.hookspecs import LoadConfig
from corellm.modelling import ComposedModel, load_published, renamed
from corellm_molmo.vision import VisionBackbone

_TABLE = "language_model.model.embed_tokens."
_IN_LAYER = {
    "att_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn_out": ("self_attn.o_proj",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "ff_proj": ("mlp.up_proj", "mlp.gate_proj"),  # the second half goes through SiLU
    "ff_out": ("mlp.down_proj",),
}
_NORMS = {
    "qwen2": {"attn_norm": ("input_layernorm",), "ff_norm": ("post_attention_layernorm",)},
    "olmo2": {"attn_norm": ("post_attention_layernorm",), "ff_norm": ("post_feedforward_layernorm",)},
}


class MolmoModel(ComposedModel):
    """Vision tower and text decoder.

    Args:
        config: the result of `load_config`.
    """

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.vision_backbone = VisionBackbone(config.vision, config.intermediate_size, config.hidden_size)
        self.language_model = AutoModelForCausalLM.from_config(config)
        self.language_model.model.embed_tokens = nn.Embedding(config.num_embeddings, config.hidden_size)


def load_model(config: Any, load_config: LoadConfig) -> MolmoModel:
    """Make the model and load its weights; with `load_format="dummy"` they stay random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    return load_published(
        lambda: MolmoModel(config).to(load_config.dtype),
        load_config,
        weights=loaded_weights,
        names=weight_names(config.model_type),
    )


def loaded_weights(model: MolmoModel) -> dict[str, Tensor]:
    """Return the model's weights by their names here; its embedding table in the two parts that a checkpoint has."""
    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    table = weights.pop(f"{_TABLE}weight")
    ordinary, added = table.tensor_split([model.language_model.lm_head.out_features])
    return {**weights, f"{_TABLE}embedding": ordinary, f"{_TABLE}new_embedding": added}


def weight_names(decoder: str) -> Callable[[str], tuple[str, ...]]:
    """Return a function from a checkpoint's names to those here; `decoder` is the configuration's `model_type`."""
    in_layer = {
        rf"model\.transformer\.blocks\.(\d+)\.{part}\.": [rf"language_model.model.layers.\1.{own}." for own in ours]
        for part, ours in {**_IN_LAYER, **_NORMS[decoder]}.items()
    }
    return renamed(
        {
            r"model\.vision_backbone\.": "vision_backbone.",
            r"model\.transformer\.wte\.": _TABLE,
            r"model\.transformer\.ln_f\.": "language_model.model.norm.",
            r"model\.transformer\.ff_out\.": "language_model.lm_head.",
            **in_layer,
        }
    )
