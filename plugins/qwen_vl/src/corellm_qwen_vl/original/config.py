"""A Qwen-VL checkpoint's configuration as one of transformers.

The text decoder is transformers' Qwen2 under older names: one fused projection with a bias for query, key and value,
none elsewhere, and an `intermediate_size` that counts gate and up projection together. The result is a `Qwen2Config`
with the vision tower's settings. Knows JSON only; nothing that `auto_map` names is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

_VISION_KEYS = ("heads", "image_size", "image_start_id", "layers", "mlp_ratio", "output_dim", "patch_size", "width")


def load_config(path: Path) -> Any:
    """Read `config.json` and `generation_config.json`.

    Sequences end at `seq_length`. Beyond it the family scales attention and its rotary base by the length of the whole
    prompt, so that a token's key depends on what comes after it; that fits neither a prefix cache nor a paged one.

    Args:
        path: the checkpoint's directory.

    Returns:
        A `Qwen2Config` with `visual` (the published section; `n_queries` is always there), `chat_format` (`"chatml"`
        or `"raw"`) and `max_window_size` (tokens of a conversation, None where not stated).

    Raises:
        CheckpointError: a file is broken, or describes something else than a Qwen-VL.
    """
    from transformers import Qwen2Config

    file = path / "config.json"
    published = _read_json(file)
    generation = _read_json(path / "generation_config.json", optional=True)
    try:
        _refuse_what_is_different(file, published)
        return Qwen2Config(
            architectures=published["architectures"],
            dtype=published.get("torch_dtype"),
            vocab_size=published["vocab_size"],
            hidden_size=published["hidden_size"],
            intermediate_size=published["intermediate_size"] // 2,
            num_hidden_layers=published["num_hidden_layers"],
            num_attention_heads=published["num_attention_heads"],
            num_key_value_heads=published["num_attention_heads"],
            rms_norm_eps=published["layer_norm_epsilon"],
            rope_parameters={"rope_type": "default", "rope_theta": float(published["rotary_emb_base"])},
            max_position_embeddings=published["seq_length"],
            eos_token_id=generation.get("eos_token_id"),
            visual={"n_queries": 256, **published["visual"]},
            chat_format=generation.get("chat_format", "chatml"),
            max_window_size=generation.get("max_window_size"),
        )
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error}, which every Qwen-VL has") from error


def _refuse_what_is_different(file: Path, published: Mapping[str, Any]) -> None:
    """Refuse other models with the same architecture name."""
    if not isinstance(published.get("visual"), Mapping):
        raise CheckpointError(f"{file} has no 'visual' section: this is a Qwen without vision, not a Qwen-VL")
    missing = sorted(set(_VISION_KEYS) - set(published["visual"]))
    if missing:
        raise CheckpointError(f"{file}: 'visual' lacks {', '.join(missing)}, which every Qwen-VL has")
    quantized = published.get("quantization_config")
    if quantized:
        raise CheckpointError(
            f"{file}: the weights are quantized ({quantized.get('quant_method', 'unknown method')}), which corellm "
            f"does not read; use the unquantized checkpoint"
        )
    hidden_size = published["hidden_size"]
    for name, value, wanted in (
        ("no_bias", published.get("no_bias", True), True),
        ("rotary_pct", published.get("rotary_pct", 1.0), 1.0),
        ("kv_channels * num_attention_heads", published["kv_channels"] * published["num_attention_heads"], hidden_size),
        ("visual.output_dim", published["visual"]["output_dim"], hidden_size),
    ):
        if value != wanted:
            raise CheckpointError(f"{file}: {name} is {value}, but a Qwen-VL of width {hidden_size} has {wanted}")


def _read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not a readable JSON file ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return content
