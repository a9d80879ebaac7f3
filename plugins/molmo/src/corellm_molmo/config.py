"""A Molmo checkpoint's configuration as one of transformers.

The text decoder is transformers' Qwen2 or OLMo 2 under older names, with an `intermediate_size` that counts gate and up
projection together. Of vision the published file says nothing: all checkpoints have the same tower. Knows JSON only;
nothing that `auto_map` names is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

VISION: Mapping[str, Any] = {
    "image_default_input_size": [336, 336],
    "image_patch_size": 14,
    "image_emb_dim": 1024,
    "image_num_heads": 16,
    "image_num_layers": 23,
    "image_mlp_dim": 4096,
}
"""OpenAI's CLIP ViT-L/14 for 336 pixels without its last layer, in the family's words."""
_NEW_TOKENS = 128
_SERVED = "Molmo-7B-D, Molmo-7B-O or Molmo-72B"
_DECODERS = {"qwen2": (True, False, False), "olmo2": (False, True, True)}
"""`{decoder of transformers: (qkv_bias, norm_after, attention_layer_norm)}`."""


def load_config(path: Path) -> Any:
    """Read `config.json`.

    Args:
        path: the checkpoint's directory.

    Returns:
        A `Qwen2Config` or `Olmo2Config` with `vision` (entries of `VISION`, of which a section `vision_config` may
        replace some) and `num_embeddings`: there are more token ids than logits.

    Raises:
        CheckpointError: it lacks an entry, or describes a model that is not served.
    """
    import transformers

    file = path / "config.json"
    published = json.loads(file.read_text(encoding="utf-8"))
    _refuse_what_is_different(file, published)
    stated = tuple(bool(published.get(name)) for name in ("qkv_bias", "norm_after", "attention_layer_norm"))
    decoder = next((name for name, served in _DECODERS.items() if served == stated), None)
    if decoder is None:
        raise CheckpointError(
            f"{file}: qkv_bias, norm_after and attention_layer_norm are {', '.join(map(str, stated))}, which is "
            f"neither Qwen2 (True, False, False) nor OLMo 2 (False, True, True); take {_SERVED}"
        )
    try:
        rows = published.get("embedding_size") or published["vocab_size"]
        return transformers.CONFIG_MAPPING[decoder](
            architectures=published["architectures"],
            dtype=published.get("torch_dtype"),
            vocab_size=rows,
            hidden_size=published["hidden_size"],
            intermediate_size=published["intermediate_size"] // 2,
            num_hidden_layers=published["num_hidden_layers"],
            num_attention_heads=published["num_attention_heads"],
            num_key_value_heads=published.get("num_key_value_heads") or published["num_attention_heads"],
            rms_norm_eps=published["layer_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": float(published["rope_theta"])},
            max_position_embeddings=published["max_position_embeddings"],
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,  # the tokenizer's
            pad_token_id=None,
            vision={**VISION, **(published.get("vision_config") or {})},
            num_embeddings=rows + _NEW_TOKENS,
        )
    except KeyError as error:
        raise CheckpointError(f"{file} lacks {error}, which every Molmo has") from error


def _refuse_what_is_different(file: Path, published: Mapping[str, Any]) -> None:
    """Refuse other models of the family, and quantized ones."""
    experts = next((name for name, value in published.items() if name.startswith("moe_") and value), None)
    if experts is not None:
        raise CheckpointError(
            f"{file}: {experts} is {published[experts]}: the decoder is a mixture of experts (MolmoE), whose router "
            f"and expert weights this plugin does not read; take {_SERVED}"
        )
    if published.get("quantization_config"):
        raise CheckpointError(
            f"{file}: the weights are quantized, which this plugin does not read; take the original checkpoint"
        )
    for name, wanted in {"layer_norm_type": "rms", "clip_qkv": None, "weight_tying": False}.items():
        value = published.get(name, wanted)
        if value != wanted:
            raise CheckpointError(f"{file}: {name} is {value!r}; the Molmo that this plugin serves has {wanted!r}")
