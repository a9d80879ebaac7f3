"""Linear layers that may be replaced by others of the same values, and where those are that were joined into one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class JoinedOutputs(NamedTuple):
    """Where the outputs of a linear layer are, after it was joined with others into one product.

    A module that has such products says so in its attribute `joined_linears`: `{name of the former child: its place}`.
    """

    child: str
    """Name of the joined layer in the module."""
    outputs: slice
    """Which of its outputs."""


@runtime_checkable
class AsLinear(Protocol):
    """A layer that is a linear one on other rows, as a convolution over patches is."""

    as_linear: str
    """Name of the child that is the linear layer. Its weight is the layer's own, each output's numbers in one row."""


def plain_linears(model: nn.Module, others: tuple[type[nn.Module], ...] = ()) -> Iterator[tuple[nn.Module, str]]:
    """Yield parent and name of every `nn.Linear` inside a model, but for those with hooks or a `forward` of their own.

    Holds no layer: one that is replaced is freed before the next is made.

    Args:
        model: what has them.
        others: types of linear layers that are yielded, too.
    """
    kinds: tuple[type[nn.Module], ...] = (nn.Linear, *others)
    for parent in [module for module in model.modules() if type(module) not in kinds]:
        for name in [name for name, child in parent.named_children() if _is_plain(child, kinds)]:
            yield parent, name


def without_values(weight: Tensor) -> Tensor:
    """Return an empty tensor of a weight's type and device, which models ask a layer for."""
    return torch.empty(0, dtype=weight.dtype, device=weight.device)


def _is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return type(module) in kinds and not hooked
