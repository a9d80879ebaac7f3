"""Writes GGUF files of tiny models, as llama.cpp's scripts do, with the `gguf` package."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen2_vl_text": gguf.MODEL_ARCH.QWEN2VL,
    "qwen2_5_vl_text": gguf.MODEL_ARCH.QWEN2VL, "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}  # fmt: skip
_SCALES_AT = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
"""Where a block has its factors, of types to which the package does not round."""
_LARGEST_SCALE = {Kind.Q2_K: 15 * 3, Kind.Q3_K: 32 * 4, Kind.Q4_K: 63 * 15, Kind.Q5_K: 63 * 31, Kind.Q6_K: 128 * 32}
_TOWER = {
    "embeddings.class_embedding": "v.class_embd",
    "embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "embeddings.position_embedding.weight": "v.position_embd.weight",
    "pre_layrnorm": "v.pre_ln",
    "encoder.layers": "v.blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_QWEN2_VL_TOWER = {
    "patch_embed.proj": "v.patch_embd", "blocks": "v.blk", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "norm1": "ln1", "norm2": "ln2", "merger.ln_q": "v.post_ln", "merger.mlp": "mm", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def stored(weight: Tensor, kind: Kind, seed: int = 0) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Return a weight in a type, and its values: rounded, or random ones of K types."""
    if kind in _SCALES_AT:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = weight.shape
        raw = np.random.default_rng(seed).integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
        factor = np.array([4 / _LARGEST_SCALE[kind] / columns**0.5], dtype=np.float16).view(np.uint8)
        for place in _SCALES_AT[kind]:
            raw[:, place : place + 2] = factor
        raw = raw.reshape(rows, -1)
    else:
        raw = gguf.quantize(weight.float().numpy(), kind)
    return raw, torch.from_numpy(gguf.dequantize(raw, kind).copy())


def write_text(
    path: Path,
    model: Any,
    tokenizer: Any,
    kind_of: Callable[[str], Kind],
    factors: Tensor | None = None,
    part: int = 0,
    **more: Any,
) -> Mapping[str, Tensor]:
    """Write the text model of a Llama, Qwen2 or LLaVA, and return the values of its weights by parameter.

    Args:
        path: of the file.
        model: of transformers.
        tokenizer: its own.
        kind_of: returns a matrix's type, by the parameter's name.
        factors: of positions.
        part: most tensors of a part, and none in the first; 0 for a file in one part.
        more: further values by key, which replace others; None leaves one out.
    """
    config = model.config.get_text_config()
    arch = ARCHITECTURES[config.model_type]
    name = gguf.MODEL_ARCH_NAMES[arch]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    values: dict[str, Any] = {
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": heads,
        f"{name}.attention.head_count_kv": kv_heads,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": float(rope["rope_theta"]),
        f"{name}.rope.dimension_count": config.hidden_size // heads,
    }
    if name == "gemma3":
        values |= {f"{name}.attention.key_length": config.head_dim, f"{name}.attention.value_length": config.head_dim}
        values |= {f"{name}.attention.sliding_window": config.sliding_window}
    values |= tokenizer_values(tokenizer) | more
    tensors, made = dict[str, Any](), dict[str, Tensor]()
    for place, parameter in model.state_dict().items():
        alone = place.replace("language_model.", "").replace("text_model.", "")
        known = names.get_name(alone, (".weight", ".bias"))
        if known is None or (alone == "lm_head.weight" and model.config.tie_word_embeddings):
            continue
        kind = kind_of(place) if parameter.dim() == 2 else Kind.F32
        raw, made[place] = stored(parameter, kind, len(made))
        if name == "gemma3" and "norm" in place:
            raw = raw + 1
        if name == "llama" and (".q_proj." in place or ".k_proj." in place):
            count = heads if ".q_proj." in place else kv_heads
            raw = raw.reshape(count, 2, -1, *raw.shape[1:]).swapaxes(1, 2).reshape(raw.shape)
        tensors[known] = raw, kind
    if factors is not None:
        tensors["rope_freqs.weight"] = factors.numpy(), Kind.F32
    _write(path, name, values, tensors, part)
    return made


def write_tower(
    path: Path, llava: Any, images: Any, *, kind: Kind = Kind.F32, swapped: bool = False, **more: Any
) -> None:
    """Write the tower and the projector of a LLaVA, without layers behind the one whose output it uses.

    Args:
        path: of the file.
        llava: of transformers, with a CLIP tower.
        images: its processor of images.
        kind: of matrices.
        swapped: name a layer's products the other way round, as the first files do.
        more: as of `write_text`.
    """
    config = llava.config.vision_config
    count = config.num_hidden_layers + 1 + llava.config.vision_feature_layer
    values = {
        "general.type": "mmproj", "clip.has_vision_encoder": True, "clip.has_llava_projector": True,
        "clip.projector_type": "mlp", "clip.use_gelu": False, "clip.vision.image_size": config.image_size,
        "clip.vision.patch_size": config.patch_size, "clip.vision.embedding_length": config.hidden_size,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.projection_dim": config.projection_dim,
        "clip.vision.attention.head_count": config.num_attention_heads, "clip.vision.block_count": count,
        "clip.vision.attention.layer_norm_epsilon": config.layer_norm_eps,
        "clip.vision.image_mean": list(images.image_mean), "clip.vision.image_std": list(images.image_std),
    }  # fmt: skip
    tensors = {}
    for place, parameter in llava.state_dict().items():
        _, _, name = place.partition("multi_modal_projector.linear_")
        if name:
            name = {"1": "mm.0", "2": "mm.2"}[name[0]] + name[1:]
        elif "vision_tower." in place and "post_layernorm" not in place:
            name = place.partition("vision_tower.")[2].removeprefix("vision_model.")
            for ours, theirs in _TOWER.items():
                name = name.replace(ours, theirs)
        if not name or (name.startswith("v.blk.") and int(name.split(".")[2]) >= count):
            continue
        if swapped and "ffn_" in name:
            name = name.replace("ffn_up", "?").replace("ffn_down", "ffn_up").replace("?", "ffn_down")
        own = kind if parameter.dim() == 2 else Kind.F32
        tensors[name] = gguf.quantize(parameter.float().numpy(), own), own
    _write(path, "clip", values | more, tensors)


def write_siglip(folder: Path, checkpoint: Path, kind: Kind, **more: Any) -> Any:
    """Write the two files of a Gemma 3 or Idefics 3, with the text model's matrices in a type.

    Returns:
        The model of the same weights.
    """
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(checkpoint)
    values = write_text(folder / "model.gguf", model, processor.tokenizer, lambda name: kind, **more)
    model.load_state_dict(model.state_dict() | values)
    config, images = model.config.vision_config, processor.image_processor
    stated = {
        "clip.has_vision_encoder": True, "clip.projector_type": model.config.model_type, "clip.use_gelu": True,
        "clip.vision.image_size": config.image_size, "clip.vision.patch_size": config.patch_size,
        "clip.vision.embedding_length": config.hidden_size, "clip.vision.block_count": config.num_hidden_layers,
        "clip.vision.feed_forward_length": config.intermediate_size,
        "clip.vision.attention.head_count": config.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": config.layer_norm_eps,
        "clip.vision.image_mean": list(images.image_mean), "clip.vision.image_std": list(images.image_std),
    }  # fmt: skip
    if model.config.model_type == "idefics3":
        stated["clip.vision.projector.scale_factor"] = model.config.scale_factor
        stated["clip.vision.preproc_image_size"] = images.size["longest_edge"]
    elif (scale := config.image_size // config.patch_size // int(model.config.mm_tokens_per_image**0.5)) != 4:
        stated["clip.vision.projector.scale_factor"] = scale
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.num_hidden_layers)
    tensors = {}
    for place, parameter in model.state_dict().items():
        whole = place.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
        whole = whole.replace("vision_model.vision_model", "vision_model").replace("_weight", ".weight")
        if any(part in place for part in ("language_model", "text_model", "lm_head")):
            continue
        name = names.get_name(place, (".weight", ".bias")) or names.get_name(whole, (".weight", ".bias"))
        assert name is not None, place
        tensors[name] = (parameter + 1 if "soft_emb_norm" in name else parameter).float().numpy(), Kind.F32
    _write(folder / "mmproj.gguf", "clip", stated, tensors)
    return model


def write_qwen_vl(folder: Path, checkpoint: Path, kind: Kind) -> Any:
    """Write the two files of a Qwen2-VL or Qwen2.5-VL, with the text model's matrices in a type.

    Returns:
        The model of the same weights.
    """
    model = transformers.AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    images = json.loads((checkpoint / "preprocessor_config.json").read_text())
    sections: dict[str, Any] = {
        "qwen2vl.rope.dimension_sections": [*model.config.text_config.rope_parameters["mrope_section"], 0]
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    values = write_text(folder / "model.gguf", model, tokenizer, lambda name: kind, **sections)
    model.load_state_dict(model.state_dict() | values)
    config = model.config.vision_config
    own: dict[str, Any] = {
        "clip.projector_type": "qwen2vl_merger", "clip.vision.embedding_length": getattr(config, "embed_dim", None),
        "clip.vision.feed_forward_length": config.hidden_size,
    }  # fmt: skip
    if model.config.model_type == "qwen2_5_vl":
        own = {
            "clip.projector_type": "qwen2.5vl_merger", "clip.vision.embedding_length": config.hidden_size,
            "clip.vision.feed_forward_length": config.intermediate_size, "clip.use_silu": True,
            "clip.vision.window_size": config.window_size,
            "clip.vision.n_wa_pattern": config.fullatt_block_indexes[0] + 1,
        }  # fmt: skip
    stated = own | {
        "clip.has_vision_encoder": True, "clip.vision.image_size": 560,
        "clip.vision.patch_size": config.patch_size, "clip.vision.block_count": config.depth,
        "clip.vision.attention.head_count": config.num_heads, "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.image_mean": images["image_mean"], "clip.vision.image_std": images["image_std"],
        "clip.vision.image_min_pixels": images["size"]["shortest_edge"],
        "clip.vision.image_max_pixels": images["size"]["longest_edge"],
    }  # fmt: skip
    tensors: dict[str, Tensor] = {}
    for place, parameter in model.model.visual.state_dict().items():
        name = place
        for ours, theirs in _QWEN2_VL_TOWER.items():
            name = name.replace(ours, theirs)
        if "qkv" in name:
            tensors |= {name.replace("qkv", part): rows for part, rows in zip("qkv", parameter.chunk(3), strict=True)}
        elif name == "v.patch_embd.weight":
            tensors |= {name: parameter[:, :, 0], f"{name}.1": parameter[:, :, 1]}
        else:
            tensors[name] = parameter
    stored_tensors = {name: (values.float().numpy(), Kind.F32) for name, values in tensors.items()}
    _write(folder / "mmproj.gguf", "clip", stated, stored_tensors)
    return model


def write_llava(folder: Path, checkpoint: Path | str, kind: Kind, part: int = 0) -> Any:
    """Write a LLaVA's two files, with the text model's matrices in a type; return the model with the same weights.

    With `part`, the text model's file is in parts of so many tensors.
    """
    model = transformers.LlavaForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(checkpoint)
    values = write_text(folder / "model.gguf", model, processor.tokenizer, lambda name: kind, part=part)
    model.load_state_dict(model.state_dict() | values)
    write_tower(folder / "mmproj-model.gguf", model, processor.image_processor)
    return model


def tokenizer_values(tokenizer: Any) -> dict[str, Any]:
    """Return what a file states of a tokenizer: byte-level, or as SentencePiece has it."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    spelled = sorted(ids := tokenizer.get_vocab(), key=ids.__getitem__)
    special = set(tokenizer.all_special_tokens)
    of_pieces = model["byte_fallback"]
    kinds = [_token_type(token, special, of_pieces) for token in spelled]
    key = "tokenizer.ggml"
    values: dict[str, Any] = {
        f"{key}.model": "llama" if of_pieces else "gpt2",
        f"{key}.pre": "default" if of_pieces else "gpt-2",
        f"{key}.tokens": spelled,
        f"{key}.token_type": [int(kind) for kind in kinds],
        f"{key}.add_bos_token": tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id,
        f"{key}.bos_token_id": tokenizer.bos_token_id,
        f"{key}.eos_token_id": tokenizer.eos_token_id,
        f"{key}.unknown_token_id": tokenizer.unk_token_id,
        f"{key}.padding_token_id": tokenizer.pad_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }
    if of_pieces:
        values[f"{key}.scores"] = [-float(index) for index in range(len(spelled))]
    else:
        values[f"{key}.merges"] = [" ".join(pair) for pair in model["merges"]]
    return values


def _token_type(token: str, special: set[str], of_pieces: bool) -> gguf.TokenType:
    if token in special:
        return gguf.TokenType.UNKNOWN if token == "<unk>" else gguf.TokenType.CONTROL
    is_byte = of_pieces and token.startswith("<0x") and len(token) == 6
    return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL


def _write(path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Any], part: int = 0) -> None:
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=part, small_first_shard=bool(part))
    for key, value in values.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
