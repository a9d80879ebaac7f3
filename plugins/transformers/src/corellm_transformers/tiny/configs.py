"""A tiny configuration of any class of transformers: its defaults with every size made small.

Knows what sizes are called; knows no model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUM_LAYERS = 2
_WIDTH, _HEADS, _HEAD_DIM = 64, 4, 16
SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "dim", "projector_hidden_size"), _WIDTH),
    **dict.fromkeys(("projection_dim", "output_dim", "out_hidden_size", "cross_attention_hidden_size"), _WIDTH),
    **dict.fromkeys(("encoder_hidden_size", "vision_hidden_size", "audio_hidden_size", "embedding_dim"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "mlp_dim"), 2 * _WIDTH),
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layers", "layers", "encoder_layers", "decoder_layers", "depth"),
        NUM_LAYERS,
    ),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads", "n_heads"), _HEADS),
    **dict.fromkeys(("decoder_attention_heads", "attention_heads"), _HEADS),
    "num_key_value_heads": 2,
    "head_dim": _HEAD_DIM,
    "max_position_embeddings": 1024,
    "hidden_size_per_layer_input": 8,
    "image_size": 56,
    "patch_size": 14,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts"), 1),
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "attention_multiplier": _HEAD_DIM**-0.5,
    "query_pre_attn_scalar": _HEAD_DIM,
}
"""`{name of a size, in any configuration: its tiny value}`; those that a configuration has not, or None, stay away.

Also of scales that follow from a size: that of large heads makes small ones attend to all tokens alike.
"""


def tiny_config(cls: Any, changes: Mapping[str, Any], vocab_size: int) -> Any:
    """Return a small configuration.

    Args:
        cls: of the configuration.
        changes: what is to be different, for sub-configurations as nested mappings.
        vocab_size: of the tokenizer.
    """
    stated = cls(**_start(cls, changes)).to_dict()
    return cls.from_dict(_merged(_shrunk(stated, vocab_size), changes))


def _start(cls: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The `model_type` of sub-configurations that are to be of another class than the default."""
    return {
        name: {"model_type": part["model_type"]}
        for name, part in changes.items()
        if isinstance(part, Mapping) and "model_type" in part and name in cls.sub_configs
    }


def _shrunk(stated: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name, value in stated.items():
        if name == "per_layer_config":
            continue  # made anew, for as many layers
        if isinstance(value, Mapping):
            small[name] = _shrunk(value, vocab_size)
        elif name in ("vocab_size", "vocab_size_per_layer_input") and value is not None:
            small[name] = vocab_size
        elif name == "deepstack_visual_indexes" and value:
            small[name] = [0]
        elif name == "mrope_section":
            small[name] = [_HEAD_DIM // 8, 3 * _HEAD_DIM // 16, 3 * _HEAD_DIM // 16]
        elif name in SIZES and isinstance(value, int | float) and not isinstance(value, bool):
            small[name] = SIZES[name]
        elif name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            small[name] = _varied(value)
        else:
            small[name] = value
    return small


def _varied(kinds: list[Any]) -> list[Any]:
    """As many layers as there are, the first of another kind than the last, if there are any two."""
    different = list(dict.fromkeys(kinds))
    return (different * NUM_LAYERS)[:NUM_LAYERS]


def _merged(stated: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(stated)
    for name, change in changes.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, change) if isinstance(inner, Mapping) and isinstance(change, Mapping) else change
    return merged
