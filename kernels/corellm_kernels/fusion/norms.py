"""Norms that run as one kernel and can add the residual in it.

Knows RMSNorm in the form that transformers' decoders have, and torch's LayerNorm.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import TOLERANCES, agree, draw, outcome, swapped_for


class FusedNorm(nn.Module, ABC):
    """A norm over the last dimension."""

    weight: nn.Parameter
    norm_eps: float
    kernels: KernelSet

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., width]`, normalized."""

    @abstractmethod
    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the norm of `residual + x`; the sum is written to `residual`, which must be contiguous."""


class FusedRMSNorm(FusedNorm):
    """RMSNorm."""

    def forward(self, x: Tensor) -> Tensor:
        """See `FusedNorm.forward`."""
        weight = self.weight.to(x.dtype)  # some decoders keep the residual in float32
        return self.kernels.rms_norm(x.contiguous(), weight, self.norm_eps)

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `FusedNorm.of_sum`."""
        return self.kernels.rms_norm(x.contiguous(), self.weight, self.norm_eps, residual=residual)


class FusedLayerNorm(FusedNorm):
    """LayerNorm."""

    bias: nn.Parameter | None

    def forward(self, x: Tensor) -> Tensor:
        """See `FusedNorm.forward`."""
        return self.kernels.layer_norm(x.contiguous(), self.weight, self.bias, self.norm_eps)

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `FusedNorm.of_sum`."""
        return self.kernels.layer_norm(x.contiguous(), self.weight, self.bias, self.norm_eps, residual=residual)


def fused_norm(module: nn.Module, kernels: KernelSet) -> nn.Module | None:
    """Return the norm in one kernel; None if the module computes something else."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if isinstance(module, FusedNorm) or not isinstance(eps, float) or not isinstance(weight, Tensor):
        return None
    if weight.ndim != 1 or weight.dtype not in TOLERANCES or len(inspect.signature(module.forward).parameters) != 1:
        return None
    held = {name for name, _ in (*module.named_parameters(), *module.named_buffers(), *module.named_children())}
    if held != {"weight"} and type(module) is not nn.LayerNorm:
        return None
    made = swapped_for(module, FusedLayerNorm if type(module) is nn.LayerNorm else FusedRMSNorm)
    made.norm_eps, made.kernels = eps, kernels
    # an ordinary row, a large one, and one so small that eps matters
    x = draw(weight, 1, 3, len(weight)) * torch.tensor([[1.0], [64.0], [eps**0.5]]).to(weight)
    theirs = outcome(lambda: module(x))
    return made if theirs is not None and agree(outcome(lambda: made(x)), theirs) else None
