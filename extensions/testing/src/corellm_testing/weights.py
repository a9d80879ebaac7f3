"""The weights of a checkpoint as an adapter's `load_model` gives them, without an engine.

Knows which dtypes they may have; knows no rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corellm.config import EngineConfig
from corellm.loading.locating import locate

if TYPE_CHECKING:
    from torch import nn

_KEPT = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
"""Attributes of transformers' models: parts of the names of weights that stay in float32."""


def weights_of_other_dtypes(checkpoint: Path, dtype: str) -> list[str]:
    """Return the weights, by name with their dtype, that are not of the dtype that was asked for.

    Without vectors of float32, and what transformers' own classes keep in float32.

    Raises:
        Exception: whatever `load_model` raises.
    """
    from corellm.loading.model_parts import load_model
    from corellm.loading.opening import at_load, open_model

    config = EngineConfig.from_kwargs(model=str(checkpoint), dtype=dtype)
    with at_load(config.model.model):
        opened = open_model(config, locate(config.model))
        try:
            return _of_others(load_model(config, opened.hooks, opened.context), dtype)
        finally:
            opened.templates.close()


def _of_others(model: nn.Module, dtype: str) -> list[str]:
    import torch

    found = [getattr(module, attribute, None) for module in model.modules() for attribute in _KEPT]
    kept = {part for parts in found for part in parts or ()}
    return [
        f"{name} ({str(weight.dtype).removeprefix('torch.')})"
        for name, weight in model.named_parameters()
        if weight.is_floating_point()
        and weight.dtype != getattr(torch, dtype)
        and not (weight.dtype == torch.float32 and (weight.ndim < 2 or any(part in name for part in kept)))
    ]
