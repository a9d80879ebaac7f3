"""Gated MLPs with one projection for gate and up, and one kernel between it and the last projection.

Knows the children's names that transformers' decoders share; the activation is found by running it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm.plain_linears import JoinedOutputs
from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import Linear, agree, draw, joined, joined_places, linears, outcome, swapped_for

_HALVES = ("gate_proj", "up_proj")


class FusedGatedMLP(nn.Module):
    """`down(function(gate(x)) * up(x))`, with `gate` and `up` in one projection."""

    gate_up_proj: nn.Module
    joined_linears: dict[str, JoinedOutputs]
    down_proj: Linear
    product: Callable[[Tensor], Tensor]
    kernels: KernelSet

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP's output for `[..., width]`."""
        inner: Tensor = self.down_proj(self.product(self.gate_up_proj(x)))
        return inner

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Add `forward(x)` to `residual`, which must be contiguous, in place, as part of the last product."""
        self.kernels.add_product(residual, self.product(self.gate_up_proj(x)), self.down_proj)
        return residual


def fused_mlp(module: nn.Module, kernels: KernelSet) -> nn.Module | None:
    """Return the fused MLP; None if the module is another kind of layer."""
    if {name for name, _ in module.named_children()} - {*_HALVES, "down_proj", "act_fn"}:
        return None
    halves, down = linears(module, _HALVES), linears(module, ("down_proj",))
    if not halves or not down or len(inspect.signature(module.forward).parameters) != 1:
        return None
    product = _product(getattr(module, "act_fn", None), halves[0].weight, kernels)
    whole = joined(halves, kernels.join)
    if product is None or whole is None:
        return None
    made = swapped_for(module, FusedGatedMLP)
    del made.gate_proj, made.up_proj
    made.gate_up_proj, made.product, made.kernels = whole, product, kernels
    made.joined_linears = joined_places(_HALVES, halves, "gate_up_proj")
    x = draw(halves[0].weight, 1, 3, halves[0].in_features)
    theirs = outcome(lambda: module(x))
    if theirs is None or not agree(outcome(lambda: made(x)), theirs):
        return None
    residual = draw(theirs, *theirs.shape, seed=1) * theirs.std()
    return made if agree(outcome(lambda: made.add_to(residual.clone(), x)), residual + theirs) else None


def _product(function: Any, like: Tensor, kernels: KernelSet) -> Callable[[Tensor], Tensor] | None:
    """Return the kernel that computes an activation and multiplies; the activation is recognized by its values."""
    products: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (functional.silu, kernels.silu_and_mul),
        (functional.gelu, kernels.gelu_and_mul),
        (partial(functional.gelu, approximate="tanh"), partial(kernels.gelu_and_mul, approximate="tanh")),
    ]
    points = torch.linspace(-6, 6, 64, device=like.device, dtype=torch.float32)[None]
    given = outcome(lambda: function(points.clone()))  # some work in place
    return next((kernel for known, kernel in products if agree(given, known(points))), None)
