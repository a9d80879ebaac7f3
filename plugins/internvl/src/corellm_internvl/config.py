"""A published InternVL checkpoint's configuration as one of transformers.

The vision tower and the projector are those of transformers' InternVL under other names; the language model is one of
those that transformers has. Knows JSON only; nothing that `auto_map` names is imported.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

_LANGUAGE_MODELS = {
    "LlamaForCausalLM": "LlamaConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
}
_VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 3200,
    "image_size": 224,
    "intermediate_size": 12800,
    "layer_norm_eps": 1e-6,
    "norm_type": "rms_norm",
    "num_attention_heads": 25,
    "num_channels": 3,
    "num_hidden_layers": 48,
    "patch_size": 14,
    "qk_normalization": True,
    "qkv_bias": False,
}
"""What a published `vision_config` means where it does not say."""
_VISION_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}
_TILING_DEFAULTS: Mapping[str, Any] = {
    "dynamic_image_size": False,
    "max_dynamic_patch": 6,
    "min_dynamic_patch": 1,
    "use_thumbnail": False,
}
_WANTED: Mapping[str, Any] = {
    "pad2square": False,
    "ps_version": "v2",
    "select_layer": -1,
    "use_backbone_lora": 0,
    "use_llm_lora": 0,
}
"""Settings of which only these values can be served."""
_MEANT: Mapping[str, Any] = {**_WANTED, "ps_version": "v1"}
"""What they are where a configuration does not say."""


def load_config(path: Path) -> Any:
    """Read `config.json`.

    A language model with `dynamic` rotary scaling (InternVL3) is used up to the length it was trained for: until there
    nothing is scaled, and beyond it a token's key would depend on what comes after.

    Args:
        path: the checkpoint's directory.

    Returns:
        An `InternVLConfig` with `tile_size` (the side of a tile in pixels), `dynamic_image_size`, `use_thumbnail`,
        `min_dynamic_patch`, `max_dynamic_patch`, and the conversation's `template` and `system_message`, None where not
        stated.

    Raises:
        CheckpointError: the file is broken, or describes something that cannot be served.
    """
    import transformers

    file = path / "config.json"
    published = _read_json(file)
    try:
        _refuse_what_is_different(file, published)
        vision = {**_VISION_DEFAULTS, **published["vision_config"]}
        size, ratio = published.get("force_image_size") or vision["image_size"], published["downsample_ratio"]
        text = _text_config(file, published["llm_config"])
        return transformers.InternVLConfig(
            architectures=published["architectures"],
            dtype=published.get("torch_dtype"),
            vision_config={_VISION_NAMES.get(name, name): vision[name] for name in _VISION_DEFAULTS},
            text_config=text,
            tie_word_embeddings=text.tie_word_embeddings,
            downsample_ratio=ratio,
            image_seq_length=int((size // vision["patch_size"]) ** 2 * ratio**2),
            tile_size=size,
            template=published.get("template"),
            system_message=published.get("system_message"),
            **{name: published.get(name, value) for name, value in _TILING_DEFAULTS.items()},
        )
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error}, which every InternVL has") from error


def _text_config(file: Path, published: Mapping[str, Any]) -> Any:
    """The language model's configuration: what its class names, and nothing that other versions wrote beside it."""
    import transformers

    (architecture,) = published.get("architectures") or ("none",)
    if architecture not in _LANGUAGE_MODELS:
        hint = ", whose tokenizer is Python code in the checkpoint" if architecture.startswith("InternLM") else ""
        raise CheckpointError(
            f"{file}: the language model is {architecture}{hint}; this plugin serves {', '.join(_LANGUAGE_MODELS)}. "
            f"Take a checkpoint with one of these, or this one in transformers' own layout (its name ends in -hf)"
        )
    cls = getattr(transformers, _LANGUAGE_MODELS[architecture])
    known = {field.name for field in dataclasses.fields(cls)}
    known -= {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}
    stated = {name: value for name, value in published.items() if name in {*known, "rope_theta", "rope_scaling"}}
    scaling = stated.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "dynamic":
        stated["rope_scaling"] = None
    return cls(**{"tie_word_embeddings": False, **stated})


def _refuse_what_is_different(file: Path, published: Mapping[str, Any]) -> None:
    """Refuse what the published code would compute otherwise."""
    for name, wanted in _WANTED.items():
        value = published.get(name, _MEANT[name])
        if value != wanted:
            raise CheckpointError(
                f"{file}: {name} is {value!r}, and corellm-internvl serves {wanted!r} only, as in InternVL2 and later"
            )
    quantized = published.get("quantization_config") or published["llm_config"].get("quantization_config")
    if quantized:
        raise CheckpointError(
            f"{file}: the weights are quantized ({quantized.get('quant_method', 'unknown method')}), which corellm "
            f"does not read; use the unquantized checkpoint"
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not a readable JSON file ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return content
