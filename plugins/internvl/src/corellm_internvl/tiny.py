"""A tiny random InternVL checkpoint, made without downloads, with the files and names of the published ones.

Its `auto_map` names modules of the checkpoint's own, as the published ones do; they must never be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import spare, train_tokenizer, with_biases, write_json, write_weights
from corellm_internvl.tokenizer import IMAGE_CONTEXT, IMAGE_END, IMAGE_START

_PATCH, _WIDTH = 14, 64
_MARKS = ("<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>")

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "Llama": {"language_model": "LlamaForCausalLM"},
    "Qwen3, tied embeddings": {"language_model": "Qwen3ForCausalLM", "tied": True},
    "other image tokens": {"spare_tokens": 3},
    "the tower of the larger checkpoints": {"qk_normalization": True, "norm_type": "rms_norm", "qkv_bias": False},
    "more tokens a tile, of positions for another size": {"force_image_size": 84},
    "no small image beside the tiles": {"use_thumbnail": False, "min_dynamic_patch": 2, "max_dynamic_patch": 4},
    "always one tile": {"dynamic_image_size": False},
    "dynamic rotary scaling": {"rope_scaling": {"factor": 2.0, "type": "dynamic"}},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "InternLM2": {"language_model": "InternLM2ForCausalLM"},
    "an embedding of an earlier layer": {"select_layer": -2},
    "tiles that are transposed": {"ps_version": "v1"},
    "images filled to squares": {"pad2square": True},
    "adapters beside the weights": {"use_llm_lora": 16},
    "quantized weights": {"quantization_config": {"quant_method": "awq"}},
    "fewer tiles at most than at least": {"min_dynamic_patch": 4, "max_dynamic_patch": 2},
    "a tokenizer without image tokens": {"image_tokens": False},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    language_model: str = "Qwen2ForCausalLM",
    hidden_size: int = 64,
    num_layers: int = 2,
    tied: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    image_tokens: bool = True,
    spare_tokens: int = 0,
    qk_normalization: bool = False,
    norm_type: str = "layer_norm",
    qkv_bias: bool = True,
    num_shards: int = 1,
    **settings: Any,
) -> Path:
    """Write a checkpoint under the published names into `path`, and return that; `seed` is the weights'.

    Args:
        language_model: its class.
        hidden_size, num_layers: of the language model.
        tied: whether its output layer is its embedding table.
        rope_scaling: of the language model.
        image_tokens: whether the tokenizer has those around and in an image.
        spare_tokens: special tokens without a use, before the family's.
        qk_normalization, norm_type, qkv_bias: of the vision tower.
        num_shards: files to spread the weights over; more than one come with an index.
        **settings: of `config.json`, beside or instead of those of the published ones.
    """
    of_images = [IMAGE_START, IMAGE_END, IMAGE_CONTEXT] if image_tokens else []
    special = [*spare(spare_tokens), "<|im_start|>", "<|im_end|>", *of_images, *_MARKS]
    tokenizer = train_tokenizer(special, eos="<|endoftext|>", pad="<|endoftext|>")
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(path)
    vision = {
        "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "hidden_act": "gelu",
        "hidden_size": _WIDTH, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 56, "patch_size": _PATCH, "num_channels": 3, "layer_norm_eps": 1e-6, "norm_type": norm_type,
        "qk_normalization": qk_normalization, "qkv_bias": qkv_bias, "use_flash_attn": True, "drop_path_rate": 0.1,
    }  # fmt: skip
    text = {
        "architectures": [language_model], "model_type": language_model.removesuffix("ForCausalLM").lower(),
        "vocab_size": len(tokenizer), "hidden_size": hidden_size, "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "rope_scaling": rope_scaling,
        "hidden_act": "silu", "tie_word_embeddings": tied, "eos_token_id": tokenizer.eos_token_id,
        "attn_implementation": "flash_attention_2", "use_sliding_window": False, "sliding_window": 32768,
        "head_dim": hidden_size // 4,
    }  # fmt: skip
    config = {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "torch_dtype": "float32",
        "auto_map": {
            "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
            "AutoModel": "modeling_internvl_chat.InternVLChatModel",
        },
        "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": 56, "max_dynamic_patch": 6,
        "min_dynamic_patch": 1, "pad2square": False, "ps_version": "v2", "select_layer": -1, "template": "internvl2_5",
        "use_backbone_lora": 0, "use_llm_lora": 0, "use_thumbnail": True,
        "vision_config": vision, "llm_config": text, **settings,
    }  # fmt: skip
    write_json(path, {"config.json": config, "generation_config.json": {"eos_token_id": tokenizer.eos_token_id}})
    spread: dict[str, float | Callable[[Any], Any]] = {
        "*embed_tokens*": 0.05 if tied else 0.5,
        "*_embedding": 0.5,
        "*.ls[12]": lambda noise: 1 + 0.1 * noise,
    }
    write_weights(path, {**_of_images(vision, hidden_size), **_of_text(text)}, seed, spread, num_shards=num_shards)
    return Path(path)


def _of_images(vision: Mapping[str, Any], hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The weights of tower and projector, by their published names."""
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    positions = (vision["image_size"] // _PATCH) ** 2 + 1
    has_bias = vision["norm_type"] == "layer_norm"
    shapes: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.class_embedding": (1, 1, width),
        "vision_model.embeddings.position_embedding": (1, positions, width),
    }
    modules: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.patch_embedding": (width, 3, _PATCH, _PATCH),
        "mlp1.0": (4 * width,),
        "mlp1.1": (hidden_size, 4 * width),
        "mlp1.3": (hidden_size, hidden_size),
    }
    linears = {"attn.proj": (width, width), "mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    for i in range(vision["num_hidden_layers"]):
        layer = f"vision_model.encoder.layers.{i}."
        shapes[f"{layer}attn.qkv.weight"] = (3 * width, width)
        if vision["qkv_bias"]:
            shapes[f"{layer}attn.qkv.bias"] = (3 * width,)
        if vision["qk_normalization"]:
            shapes |= {f"{layer}attn.{name}.weight": (width,) for name in ("q_norm", "k_norm")}
        modules |= {f"{layer}{name}": shape for name, shape in linears.items()}
        for name in ("norm1", "norm2"):
            shapes |= {f"{layer}{name}.{part}": (width,) for part in ("weight", "bias")[: 1 + has_bias]}
        shapes |= {f"{layer}{name}": (width,) for name in ("ls1", "ls2")}
    return shapes | with_biases(modules)


def _of_text(text: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The language model's weights."""
    hidden, inner, half = text["hidden_size"], text["intermediate_size"], text["hidden_size"] // 2
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.model.embed_tokens.weight": (text["vocab_size"], hidden),
        "language_model.model.norm.weight": (hidden,),
    }
    if not text["tie_word_embeddings"]:
        shapes["language_model.lm_head.weight"] = (text["vocab_size"], hidden)
    attention = {"q_proj": (hidden, hidden), "k_proj": (half, hidden), "v_proj": (half, hidden)}
    for i in range(text["num_hidden_layers"]):
        layer = f"language_model.model.layers.{i}."
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{name}.weight": shape for name, shape in attention.items()}
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes |= {f"{layer}mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, inner)
        if text["model_type"] == "qwen2":
            shapes |= {f"{layer}self_attn.{name}.bias": shape[:1] for name, shape in attention.items()}
        if text["model_type"] == "qwen3":
            shapes |= {f"{layer}self_attn.{name}.weight": (hidden // 4,) for name in ("q_norm", "k_norm")}
    return shapes
