"""A tiny random DeepSeek-VL2 checkpoint, made without downloads, with the files and names of the published ones.

The text decoder is like that of DeepSeek-VL2-Small: latent attention, experts chosen by softmax. Those of the other
two are in `VARIANTS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import spare, train_tokenizer, with_biases, write_json, write_weights

_MARKS = ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>", "<|User|>", "<|Assistant|>")
_NO_LATENT = {
    "use_mla": False, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
}  # fmt: skip
_BY_SIGMOID = {
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.0,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "attention without a latent, as in Tiny": {"decoder": _NO_LATENT},
    "experts chosen by sigmoid, as in the largest": {"decoder": _BY_SIGMOID},
    "a latent of queries, groups of experts": {
        "decoder": {"q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}
    },
    "another image token, and no marks of a conversation": {
        "spare_tokens": 3, "image_token": "<img>", "marks": ("<|ref|>",),
    },
    "more tokens a view, the whole image last, deeper projector": {
        "patch_size": 14, "global_view_pos": "tail", "projector": {"depth": 3, "mlp_ratio": 2},
    },
}  # fmt: skip
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "tiles in one dimension": {"tile_tag": "1D"},
    "another projector": {"projector": {"projector_type": "linear"}},
    "experts chosen in an unknown way": {"decoder": {"scoring_func": "sigmoid"}},
    "a decoder without experts": {"decoder": {"n_routed_experts": None}},
    "tiles of another size than the tower's": {"candidates": ((1, 1), (1, 1.5))},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    decoder: Mapping[str, Any] | None = None,
    projector: Mapping[str, Any] | None = None,
    hidden_size: int = 64,
    num_layers: int = 3,
    side: int = 72,
    patch_size: int = 23,
    candidates: Sequence[tuple[float, float]] = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2)),
    global_view_pos: str = "head",
    tile_tag: str = "2D",
    spare_tokens: int = 0,
    image_token: str = "<image>",
    marks: Sequence[str] = _MARKS,
) -> Path:
    """Write a checkpoint under the published names into `path`, and return that; `seed` is the weights'.

    Args:
        decoder, projector: changes of `language_config` and `projector_config`.
        hidden_size, num_layers: of the text decoder; the first layer has no experts.
        side, patch_size: of a view and of its patches in pixels; what is left over is not seen.
        candidates: resolutions, in multiples of `side`.
        global_view_pos, tile_tag: as in `config.json`.
        spare_tokens: special tokens without a use, which shift the ids of the family's own.
        image_token: the text of that token.
        marks: further tokens of the family that the tokenizer has.
    """
    tokenizer = train_tokenizer(
        [*spare(spare_tokens), image_token, *marks],
        bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", pad="<｜▁pad▁｜>",
    )  # fmt: skip
    tokenizer.save_pretrained(path)
    sizes = [[round(width * side), round(height * side)] for width, height in candidates]
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,  # wider than the tokenizer, as published
        "hidden_size": hidden_size, "intermediate_size": 2 * hidden_size, "moe_intermediate_size": hidden_size // 2,
        "num_hidden_layers": num_layers, "first_k_dense_replace": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        **(decoder or {}),
    }  # fmt: skip
    config = {
        "model_type": "deepseek_vl_v2",  # published files name no architecture
        "torch_dtype": "bfloat16", "tile_tag": tile_tag, "global_view_pos": global_view_pos,
        "candidate_resolutions": sizes, "language_config": text,
        "projector_config": {
            "model_type": "mlp_projector", "input_dim": 48, "n_embed": hidden_size, **(projector or {}),
        },
        "vision_config": {
            "model_type": "vision", "image_size": side, "patch_size": patch_size, "width": 48, "layers": 2, "heads": 4,
            "mlp_ratio": 2.51,
        },
    }  # fmt: skip
    settings = {
        "candidate_resolutions": sizes, "patch_size": patch_size, "downsample_ratio": 2, "image_token": image_token,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "normalize": True,
        "pad_token": "<｜▁pad▁｜>", "sft_format": "deepseek", "processor_class": "DeepseekVLV2Processor",
    }  # fmt: skip
    write_json(path, {"config.json": config, "processor_config.json": settings})
    tables = dict.fromkeys(("image_newline", "view_seperator", "vision.pos_embed", "*embed_tokens*"), 0.5)
    write_weights(path, published_shapes(config), seed, tables)
    return Path(path)


def published_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return every weight of a checkpoint with such a `config.json`, by its published name."""
    text, projector = config["language_config"], config["projector_config"]
    hidden, width = text["hidden_size"], projector.get("n_embed", 2048)
    embeddings = (text["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "image_newline": (width,), "view_seperator": (width,), "language.model.norm.weight": (hidden,),
        "language.model.embed_tokens.weight": embeddings, "language.lm_head.weight": embeddings,
    }  # fmt: skip
    depth, inner = projector.get("depth", 2), width * projector.get("mlp_ratio", 1)
    square = projector.get("input_dim", 1152) * projector.get("downsample_ratio", 2) ** 2
    widths = [square, *[inner] * (depth - 1), width]
    shapes |= with_biases({f"projector.layers.{2 * i}": (widths[i + 1], widths[i]) for i in range(depth)})
    shapes |= _of_tower(config["vision_config"])
    for i in range(text["num_hidden_layers"]):
        shapes |= _of_layer(f"language.model.layers.{i}", text, has_experts=i >= text["first_k_dense_replace"])
    return shapes


def _of_tower(vision: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ViT's shapes, with the pooling head that published checkpoints have, though it is not used."""
    width, patch = vision["width"], vision["patch_size"]
    inner, patches = int(width * vision["mlp_ratio"]), (vision.get("image_size", 384) // patch) ** 2
    mlp = {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    block = {"norm1": (width,), "norm2": (width,), "attn.qkv": (3 * width, width), "attn.proj": (width, width), **mlp}
    head = {"norm": (width,), "q": (width, width), "kv": (2 * width, width), "proj": (width, width), **mlp}
    parts = {f"blocks.{i}": block for i in range(vision["layers"])} | {"attn_pool": head}
    modules = {f"{part}.{name}": shape for part, shapes in parts.items() for name, shape in shapes.items()}
    modules |= {"norm": (width,), "patch_embed.proj": (width, 3, patch, patch)}
    shapes = {"pos_embed": (1, patches, width), "attn_pool.latent": (1, 1, width), **with_biases(modules)}
    return {f"vision.{name}": shape for name, shape in shapes.items()}


def _of_layer(layer: str, text: Mapping[str, Any], *, has_experts: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one layer of the text decoder."""
    hidden, heads, attention = text["hidden_size"], text["num_attention_heads"], f"{layer}.self_attn"
    shapes: dict[str, tuple[int, ...]] = {
        f"{layer}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")
    }
    if not text.get("use_mla", True):
        linears = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (hidden, hidden))  # outputs, inputs
    else:
        latent, rotated, plain = text["kv_lora_rank"], text["qk_rope_head_dim"], text["qk_nope_head_dim"]
        query, value = heads * (plain + rotated), text["v_head_dim"]
        linears = {
            "kv_a_proj_with_mqa": (latent + rotated, hidden), "kv_b_proj": (heads * (plain + value), latent),
            "o_proj": (hidden, heads * value),
        }  # fmt: skip
        shapes[f"{attention}.kv_a_layernorm.weight"] = (latent,)
        rank = text["q_lora_rank"]
        if rank is None:
            linears["q_proj"] = (query, hidden)
        else:
            linears |= {"q_a_proj": (rank, hidden), "q_b_proj": (query, rank)}
            shapes[f"{attention}.q_a_layernorm.weight"] = (rank,)
    shapes |= {f"{attention}.{name}.weight": shape for name, shape in linears.items()}
    mlps = {"mlp": text["intermediate_size"]}
    if has_experts:
        inner, experts = text["moe_intermediate_size"], text["n_routed_experts"] or 0
        mlps = {f"mlp.experts.{i}": inner for i in range(experts)}
        mlps["mlp.shared_experts"] = inner * text["n_shared_experts"]
        shapes[f"{layer}.mlp.gate.weight"] = (experts, hidden)
        if text["topk_method"] == "noaux_tc":
            shapes[f"{layer}.mlp.gate.e_score_correction_bias"] = (experts,)
    for name, inner in mlps.items():
        shapes |= {f"{layer}.{name}.{part}.weight": (inner, hidden) for part in ("gate_proj", "up_proj")}
        shapes[f"{layer}.{name}.down_proj.weight"] = (hidden, inner)
    return shapes
