"""The model with a published checkpoint's weights: transformers' InternVL, and where each weight belongs in it.

Reads safetensors only, in one file or many; reads no pickle. Every weight of the model is in the checkpoint, and the
reverse.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from corellm.hookspecs import LoadConfig
from corellm.modelling import check_weights, read_weights

_TOWER = "model.vision_tower."
_PREFIXES = {
    "vision_model.embeddings.class_embedding": f"{_TOWER}embeddings.cls_token",
    "vision_model.embeddings.position_embedding": f"{_TOWER}embeddings.position_embeddings",
    "vision_model.embeddings.patch_embedding.": f"{_TOWER}embeddings.patch_embeddings.projection.",
    "vision_model.": _TOWER,
    "mlp1.0.": "model.multi_modal_projector.layer_norm.",
    "mlp1.1.": "model.multi_modal_projector.linear_1.",
    "mlp1.3.": "model.multi_modal_projector.linear_2.",
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
}
_LAYER = re.compile(r"vision_model\.encoder\.layers\.(\d+)\.(.+?)(\.weight|\.bias|)")
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
_COMPUTED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Constants in older checkpoints, computed here."""


def load_model(config: Any, load_config: LoadConfig) -> nn.Module:
    """Return transformers' model with the checkpoint's weights; with `load_format="dummy"` they are random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    path, is_dummy = load_config.model_path, load_config.load_format == "dummy"
    attention = {"text_config": load_config.attn_implementation, "vision_config": "sdpa"}
    with load_config.device if is_dummy else torch.device("meta"):
        model = transformers.InternVLForConditionalGeneration._from_config(
            deepcopy(config), dtype=load_config.dtype, attn_implementation=attention
        )
    if not is_dummy:
        decoder = model.get_decoder()
        decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config)  # its frequencies are computed, not loaded
        state = _state(path, load_config)
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state.get("model.language_model.embed_tokens.weight", torch.empty(0))
        check_weights(path, model.state_dict(), state)
        model.load_state_dict(state, assign=True)
        model.tie_weights()
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    loaded: nn.Module = model.to(load_config.device).eval()
    return loaded


def weight_names(name: str) -> tuple[str, ...]:
    """Return transformers' names of a published weight: it is split equally among several, and skipped for none."""
    if _COMPUTED.fullmatch(name):
        return ()
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _IN_LAYER:
        return tuple(f"{_TOWER}encoder.layer.{match[1]}.{part}{match[3]}" for part in _IN_LAYER[match[2]])
    for prefix, theirs in _PREFIXES.items():
        if name.startswith(prefix):
            return (theirs + name.removeprefix(prefix),)
    return (name,)


def _state(path: Path, load_config: LoadConfig) -> dict[str, Tensor]:
    """Return the checkpoint's weights by transformers' names."""
    state: dict[str, Tensor] = {}
    for name, tensor in read_weights(path):
        if names := weight_names(name):
            tensor = tensor.to(load_config.device, load_config.dtype)
            state.update(zip(names, tensor.tensor_split(len(names)) if len(names) > 1 else (tensor,), strict=True))
    return state
