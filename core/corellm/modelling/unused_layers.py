"""Layers of vision towers whose output nothing reads: models of transformers may embed images by an earlier layer.

Knows transformers' `vision_feature_layer` and `vision_tower`; knows no model family.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def skip_unused_layers(model: Any) -> int:
    """Let layers of the vision tower behind the last feature layer return their input; return how many.

    `vision_feature_layer` is an index, or several, into the tower's hidden states, of which the first is the first
    layer's input. Where the configuration names other layers beside, more hidden states may be used: none are skipped.
    """
    chosen = getattr(model.config, "vision_feature_layer", None)
    tower = getattr(getattr(model, "model", model), "vision_tower", None)
    count = getattr(getattr(tower, "config", None), "num_hidden_layers", None)
    names = [name for name in vars(model.config) if "layer" in name and "norm" not in name]
    if chosen is None or tower is None or count is None or names != ["vision_feature_layer"]:
        return 0
    stacks = [module for module in tower.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    indices = [chosen] if isinstance(chosen, int) else chosen
    if len(stacks) != 1:
        return 0
    unused = stacks[0][max(index % (count + 1) for index in indices) :]
    for layer in unused:
        layer.forward = _unchanged
    return len(unused)


def _unchanged(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return hidden_states
