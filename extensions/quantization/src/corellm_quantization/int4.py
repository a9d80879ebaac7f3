"""`quantization="int4"`: which layers of a model get weights of 4 bits. Knows no rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from corellm.quantization import Quantize, is_quantizable
from corellm_kernels.grouped_linear import ToGroups
from corellm_kernels.int8_linear import Int8Linear
from corellm_quantization.rounding import BITS, round_groups

GROUP = 64
"""Weights that share a scale: 4.5 bits each, all told."""
_TO_GROUPS = ToGroups(partial(round_groups, group=GROUP), GROUP, BITS)


def to_int4(model: nn.Module) -> Quantize:
    """See `corellm.quantization.MakeQuantize`. The output layer gets 8 bits: its error is that of all logits."""
    output = _output_layer(model)

    def quantize(linear: nn.Linear) -> Callable[[nn.Linear], nn.Module] | None:
        if not is_quantizable(linear):
            return None
        return Int8Linear if linear is output else _TO_GROUPS

    return quantize


def _output_layer(model: nn.Module) -> nn.Module | None:
    """Return a transformers model's output layer; None if it has none."""
    find = getattr(model, "get_output_embeddings", None)
    try:
        found = None if find is None else find()
    except (AttributeError, NotImplementedError):  # as models say that have none
        return None
    return found if isinstance(found, nn.Module) else None
