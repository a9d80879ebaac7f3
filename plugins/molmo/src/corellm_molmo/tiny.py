"""A tiny random Molmo checkpoint, made without downloads, with the files and names of the published ones.

Its `auto_map` names modules of the checkpoint's own, as the published ones do; they must never be imported. A section
on vision, which those lack, makes the tower small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import train_tokenizer, with_biases, write_json, write_weights

_END = "<|endoftext|>"
_FAMILY = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<|image|>")
_TEMPLATE = (
    "{% for message in messages -%}"
    "{%- if message['role'] != ('assistant' if loop.index % 2 == 0 else 'user') -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{%- endif -%}"
    "{{ message['role'].capitalize() + ': ' + message['content'] }}{%- if not loop.last -%}{{ ' ' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ ' Assistant:' }}{%- endif -%}"
)
_SPREAD: Mapping[str, float | Callable[[Any], Any]] = {
    "*[qk]_norm.weight": lambda noise: 2 + 0.2 * noise,  # sharp attention
    **dict.fromkeys(("*.embedding", "*.new_embedding", "*.pad_embed", "*.positional_embedding"), 0.5),
    "*image_projector*": lambda noise: noise * 0.2 / noise.shape[1] ** 0.5,  # its output is as large as the table's
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "an OLMo 2 decoder, as 7B-O": {"decoder": "olmo2"},
    "other tokens, and no chat template": {"vocab_size": 470, "has_template": False},
    "other margins and fewer crops": {"overlap_margins": (2, 0), "max_crops": 4},
    "wider crops without margins": {"side": 64, "overlap_margins": (0, 0)},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "a mixture of experts": {"more": {"moe_num_experts": 64, "moe_top_k": 8}},
    "a decoder of neither kind": {"more": {"norm_after": True}},
    "tied weights": {"more": {"weight_tying": True}},
    "margins that cannot be pooled": {"overlap_margins": (1, 1)},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    decoder: str = "qwen2",
    hidden_size: int = 64,
    num_layers: int = 2,
    side: int = 48,
    overlap_margins: Sequence[int] = (2, 2),
    max_crops: int = 6,
    vocab_size: int = 400,
    has_template: bool = True,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint under the published names into `path`, and return that; `seed` is the weights'.

    Args:
        decoder: `"qwen2"` as in 7B-D, `"olmo2"` as in 7B-O.
        hidden_size, num_layers: of the decoder.
        side: of a crop, in pixels; a multiple of 16, two patches.
        overlap_margins: in patches.
        max_crops: beside the whole.
        vocab_size: of the tokenizer that is trained; the family's tokens come after it, and after the logits.
        has_template: whether the tokenizer has a chat template.
        more: entries of `config.json`.
    """
    rows = _write_tokenizer(path, vocab_size, has_template)
    config = _config(decoder, rows, hidden_size, num_layers, side) | dict(more or {})
    processor = {
        "auto_map": {
            "AutoImageProcessor": "image_preprocessing_molmo.MolmoImageProcessor",
            "AutoProcessor": "preprocessing_molmo.MolmoProcessor",
        },
        "base_image_input_size": [side, side],
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_padding_mask": True,
        "image_patch_size": 8,
        "image_processor_type": "MolmoImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_token_length_h": side // 16,
        "image_token_length_w": side // 16,
        "max_crops": max_crops,
        "overlap_margins": list(overlap_margins),
        "processor_class": "MolmoProcessor",
    }
    write_json(path, {"config.json": config, "preprocessor_config.json": processor})
    write_weights(path, _shapes(config), seed, _SPREAD)
    return Path(path)


def _config(decoder: str, rows: int, hidden_size: int, num_layers: int, side: int) -> dict[str, Any]:
    is_olmo = decoder == "olmo2"
    return {
        "architectures": ["MolmoForCausalLM"],
        "attention_layer_norm": is_olmo,
        "auto_map": {
            "AutoConfig": "config_molmo.MolmoConfig",
            "AutoModelForCausalLM": "modeling_molmo.MolmoForCausalLM",
        },
        "clip_qkv": None,
        "embedding_size": rows,
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,  # of gate and up projection together
        "layer_norm_eps": 1e-06,
        "layer_norm_type": "rms",
        "max_position_embeddings": 2048,
        "model_type": "molmo",
        "norm_after": is_olmo,
        "num_attention_heads": 4,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": None if is_olmo else 2,
        "qkv_bias": not is_olmo,
        "rope_theta": 500000.0 if is_olmo else 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_position_ids": True,
        "vision_config": {
            "image_default_input_size": [side, side],
            "image_patch_size": 8,
            "image_emb_dim": 32,
            "image_num_heads": 2,
            "image_num_layers": 10,
            "image_mlp_dim": 48,
        },
        "vocab_size": rows,
        "weight_tying": False,
    }


def _write_tokenizer(path: str | Path, vocab_size: int, has_template: bool) -> int:
    """Train a tokenizer, fill it up, add the family's tokens; returns how many tokens have logits."""
    from tokenizers import AddedToken

    tokenizer = train_tokenizer([], vocab_size=vocab_size, eos=_END, pad=_END)
    rows = -(-len(tokenizer) // 64) * 64
    added = [*(f"|<EXTRA_TOKENS_{i}>|" for i in range(rows - len(tokenizer))), *_FAMILY]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in added])
    tokenizer.chat_template = _TEMPLATE if has_template else None
    tokenizer.save_pretrained(path)
    return rows


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every weight of such a checkpoint, by its published name."""
    vision = config["vision_config"]
    hidden, inner, rows = config["hidden_size"], config["intermediate_size"], config["embedding_size"]
    width, patch, mlp = vision["image_emb_dim"], vision["image_patch_size"], vision["image_mlp_dim"]
    key = hidden // config["num_attention_heads"] * (config["num_key_value_heads"] or config["num_attention_heads"])
    text, tower = "model.transformer", "model.vision_backbone"
    shapes: dict[str, tuple[int, ...]] = {
        f"{text}.wte.embedding": (rows, hidden),
        f"{text}.wte.new_embedding": (128, hidden),
        f"{text}.ln_f.weight": (hidden,),
        f"{text}.ff_out.weight": (rows, hidden),
        f"{tower}.pad_embed": (2, 2 * width),
        f"{tower}.image_projector.w1.weight": (inner // 2, width),
        f"{tower}.image_projector.w2.weight": (hidden, inner // 2),
        f"{tower}.image_projector.w3.weight": (inner // 2, width),
        f"{tower}.image_vit.class_embedding": (width,),
        f"{tower}.image_vit.patch_embedding.weight": (width, 3 * patch**2),
        f"{tower}.image_vit.positional_embedding": (1 + (vision["image_default_input_size"][0] // patch) ** 2, width),
    }
    for i in range(config["num_hidden_layers"]):
        block = f"{text}.blocks.{i}"
        shapes |= {f"{block}.att_proj.weight": (hidden + 2 * key, hidden), f"{block}.attn_out.weight": (hidden, hidden)}
        shapes |= {f"{block}.ff_proj.weight": (inner, hidden), f"{block}.ff_out.weight": (hidden, inner // 2)}
        shapes |= {f"{block}.{name}.weight": (hidden,) for name in ("attn_norm", "ff_norm")}
        if config["qkv_bias"]:
            shapes[f"{block}.att_proj.bias"] = (hidden + 2 * key,)
        if config["attention_layer_norm"]:
            shapes |= {f"{block}.q_norm.weight": (hidden,), f"{block}.k_norm.weight": (key,)}
    modules: dict[str, tuple[int, ...]] = {f"{tower}.image_pooling_2d.w{name}": (width, 2 * width) for name in "qkv"}
    modules |= {f"{tower}.image_pooling_2d.wo": (width, width), f"{tower}.image_vit.pre_ln": (width,)}
    for i in range(vision["image_num_layers"]):
        block = f"{tower}.image_vit.transformer.resblocks.{i}"
        modules |= {f"{block}.attention.w{name}": (width, width) for name in "qkvo"}
        modules |= {f"{block}.feed_forward.w1": (mlp, width), f"{block}.feed_forward.w2": (width, mlp)}
        modules |= {f"{block}.{name}": (width,) for name in ("attention_norm", "ffn_norm")}
    return shapes | with_biases(modules)
