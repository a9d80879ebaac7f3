"""Scaled rotary positions of a GGUF file, which transformers does not read from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from corellm.errors import CheckpointError
from corellm_quantization.gguf.blocks import widened
from corellm_quantization.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_FACTORS = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What all published models with such factors have; files have the factors alone."""


def rope_parameters(file: GgufFile, config: PreTrainedConfig) -> Mapping[str, Any] | None:
    """Return the parameters of scaled positions; None where they are not scaled.

    Raises:
        CheckpointError: of a kind that is not known here.
    """
    key = f"{file.architecture}.rope.scaling"
    kind = file.stated.get(f"{key}.type", "none")
    theta = {"rope_theta": file.stated.get(f"{file.architecture}.rope.freq_base", 10000.0)}
    if _FACTORS in file.tensors:
        return theta | _llama3(file, config, theta["rope_theta"])
    if config.model_type == "gemma3_text" and kind in ("none", "linear"):
        return _gemma3(file, config.rope_parameters, kind)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn") or config.model_type.startswith("gemma"):  # whose layers differ
        raise CheckpointError(f"{file.path}: positions scaled by {kind!r:.60} are not known for {file.architecture!r}")
    scaling = theta | {"rope_type": kind, "factor": float(file.value(f"{key}.factor", float, int))}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = file.value(f"{key}.original_context_length", int)
    return scaling


def _gemma3(file: GgufFile, stated: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the parameters of layers with a window, and of those without, which alone are scaled."""
    local = {"rope_theta": file.value("gemma3.rope.freq_base_swa", float, default=10000.0)}
    scaling = {}
    if kind == "linear":
        scaling = {"rope_type": kind, "factor": float(file.value("gemma3.rope.scaling.factor", float, int))}
    return {
        "sliding_attention": stated["sliding_attention"] | local,
        "full_attention": stated["full_attention"] | scaling,
    }


def _llama3(file: GgufFile, config: PreTrainedConfig, theta: float) -> dict[str, Any]:
    """Return the parameters whose factors the file has.

    Raises:
        CheckpointError: it has others.
    """
    stored = file.tensors[_FACTORS]
    raw = torch.from_numpy(stored.raw.copy())
    stated = widened(stored.kind, raw.reshape(-1, stored.bytes_per_row), torch.float32).flatten()
    parameters = {"rope_type": "llama3", "factor": stated.max().item(), **_LLAMA3}
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    lengths = 2 * math.pi * theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    share = ((_LLAMA3["original_max_position_embeddings"] / lengths - low) / (high - low)).clamp(0, 1)
    expected = 1 / ((1 - share) / parameters["factor"] + share)
    if stated.shape != expected.shape or not torch.allclose(stated, expected, rtol=1e-3):
        raise CheckpointError(f"{file.path}: {_FACTORS} has factors of positions that are not those of Llama 3")
    return parameters
