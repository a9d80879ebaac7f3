"""What fused layers need of kernels, on whatever device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

Approximation = Literal["none", "tanh"]
"""How GELU is computed."""


class RMSNorm(Protocol):
    """Divide rows by their root mean square, and multiply by a weight."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
        """Return the norm of `x`, or of `x + residual`: the sum is written to `residual`, which must be contiguous."""
        ...


class LayerNorm(Protocol):
    """Centre rows, divide by their standard deviation, multiply by a weight and add a bias."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None
    ) -> Tensor:
        """Return the norm of `x`, or of `x + residual`: the sum is written to `residual`, which must be contiguous."""
        ...


class NormHeads(Protocol):
    """RMSNorm of every head."""

    def __call__(
        self, query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, query_eps: float, key_eps: float
    ) -> None:
        """Norm queries and keys in place, `[n, heads, size]`, views of one projection."""
        ...


class Gated(Protocol):
    """A function of the first half of each row, times the second half."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Return `[..., width]` for `[..., 2 * width]`."""
        ...


class GatedGelu(Protocol):
    """GELU of the first half of each row, times the second half."""

    def __call__(self, gate_up: Tensor, approximate: Approximation = "none") -> Tensor:
        """Return `[..., width]` for `[..., 2 * width]`."""
        ...


class AddProduct(Protocol):
    """A linear layer whose output is added to what is there."""

    def __call__(self, residual: Tensor, x: Tensor, linear: nn.Module) -> None:
        """Add the layer's output for `x` to `residual`, which is contiguous, in place."""
        ...


class Join(Protocol):
    """Linear layers of the same inputs, all with a bias or none, made one."""

    def __call__(self, layers: Sequence[nn.Linear]) -> nn.Module:
        """Return a layer whose outputs are theirs side by side."""
        ...


@dataclass(frozen=True)
class KernelSet:
    """The kernels of one kind of device. See `corellm_kernels.gpu` for each one's arguments."""

    rms_norm: RMSNorm
    layer_norm: LayerNorm
    norm_heads: NormHeads
    silu_and_mul: Gated
    gelu_and_mul: GatedGelu
    add_product: AddProduct
    join: Join
