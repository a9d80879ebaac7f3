"""Weights of fewer bits: what rounds those of linear layers when a checkpoint is loaded. Knows no type of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import nn

from corellm.plain_linears import plain_linears

_FEWEST_OUTPUTS = 32
"""Layers with fewer stay as they are, as heads of classes and routers of few experts: few weights decide much there."""


class Quantize(Protocol):
    """Says how the weight of a linear layer is rounded."""

    def __call__(self, linear: nn.Linear, /) -> Callable[[nn.Linear], nn.Module] | None:
        """Return what makes a layer in inference that is the given one on a rounded weight; None if it stays as it is.

        The made layer has `in_features`, `out_features` and `weight` (`corellm.plain_linears.without_values`).
        """
        ...


class MakeQuantize(Protocol):
    """Makes what rounds the weights of a model's linear layers."""

    def __call__(self, model: nn.Module, /) -> Quantize:
        """Return what rounds layers of this model; it is called before layers are joined."""
        ...


@runtime_checkable
class RoundsInputs(Protocol):
    """A linear layer in inference that can round its inputs to 8 bits for the time of a product."""

    def round_inputs(self) -> bool:
        """Have it do so from now on; return False if it does not, as its weights are no integers."""
        ...


def is_quantizable(linear: nn.Linear) -> bool:
    """Whether a linear layer has so many outputs that fewer bits are worth it."""
    return linear.out_features >= _FEWEST_OUTPUTS and linear.weight.is_floating_point()


def quantize_linears(model: nn.Module, quantize: Quantize) -> int:
    """Round the weights of every plain `nn.Linear` inside `model` that is worth it; return how many.

    One after the other: no more than one weight is in memory twice.
    """
    count = 0
    for parent, name in plain_linears(model):
        linear: nn.Linear = getattr(parent, name)
        if (make := quantize(linear)) is not None:
            setattr(parent, name, make(linear))
            count += 1
    return count


def round_inputs(model: nn.Module) -> int:
    """Have linear layers inside `model` whose weights are integers round their inputs to 8 bits; return how many."""
    return sum(isinstance(module, RoundsInputs) and module.round_inputs() for module in model.modules())
