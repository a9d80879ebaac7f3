"""Fixes rotary frequencies at load, for the longest sequence, so that they do not depend on the batch.

Transformers computes the frequencies of `longrope` and `dynamic` anew in every forward pass, from the longest position
in the batch. A short request would get other frequencies beside a long one than alone, and cached keys
others than later queries. Knows transformers' rotary modules; knows neither attention nor requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from corellm.errors import ConfigError


def longest_len(text_config: Any, trained: int) -> int:
    """Return the longest sequence the frequencies are made for: with `dynamic`, its factor times the trained length."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    return int(rope["factor"] * trained) if rope.get("rope_type") == "dynamic" else trained


def freeze_rope(decoder: nn.Module, max_model_len: int) -> None:
    """Fix the decoder's frequencies to those transformers uses for a prompt of `max_model_len` tokens.

    Raises:
        ConfigError: a rotary module depends on the batch in another way, which cannot be fixed.
    """
    modules: Iterator[Any] = decoder.modules()
    for module in modules:
        stated = getattr(module, "rope_type", None)
        if not isinstance(stated, (str, dict)):
            continue
        kinds = stated if isinstance(stated, dict) else {None: stated}  # by layer type, as in Gemma 3
        varying = {layer: kind for layer, kind in kinds.items() if kind == "longrope" or "dynamic" in kind}
        for layer_type, kind in varying.items():
            _freeze(module, kind, layer_type, max_model_len)
        frozen = kinds | dict.fromkeys(varying, "default")
        module.rope_type = frozen if isinstance(stated, dict) else frozen[None]
        if any(_follows_the_batch(module, layer_type, max_model_len) for layer_type in varying):
            raise ConfigError(
                f"{type(module).__name__} with rope_type {', '.join(varying.values())} changes with the longest "
                f"sequence that runs: outputs would depend on other requests; use another rope_type in config.json"
            )


def _freeze(module: Any, kind: str, layer_type: str | None, max_model_len: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix = "" if layer_type is None else f"{layer_type}_"
    device = getattr(module, f"{prefix}inv_freq").device
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](
        module.config, device, seq_len=max_model_len, layer_type=layer_type
    )
    module.register_buffer(f"{prefix}inv_freq", frequencies, persistent=False)
    setattr(module, f"{prefix}attention_scaling", scaling)


def _follows_the_batch(module: Any, layer_type: str | None, max_model_len: int) -> bool:
    """Whether position 1 gets another rotation beside the last position than alone."""
    x = next(module.buffers())
    positions = torch.tensor([[1, max_model_len - 1]], device=x.device)
    if hasattr(module, "mrope_section"):
        positions = positions.expand(3, 1, 2)
    of_layer = {} if layer_type is None else {"layer_type": layer_type}
    cos_beside, cos_alone = (module(x, part, **of_layer)[0] for part in (positions, positions[..., :1]))
    return not torch.equal(cos_beside[..., :1, :], cos_alone)
