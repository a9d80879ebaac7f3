"""Weights of 8 bits with a factor for each output: how they are rounded, and a linear layer of them in torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm.plain_linears import without_values
from corellm.quantization import is_quantizable
from corellm_kernels.int8_inputs import rounded_inputs

_LEVELS = 127
_WEIGHTS_AT_ONCE = 1 << 22
"""So many are rounded at once, in float32."""


def round_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to 8 bits, each row by a factor of its own: the largest of its absolute values becomes 127.

    Args:
        weight: `[n, k]`, of any floating type.

    Returns:
        int8 `[n, k]`, contiguous, and float32 factors `[n]`; their product is the weight, up to half a factor.
    """
    rounded = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    factors = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    at_once = max(1, _WEIGHTS_AT_ONCE // max(1, weight.shape[1]))
    for start in range(0, len(weight), at_once):
        rows = weight[start : start + at_once].float()
        factor = rows.abs().amax(1) / _LEVELS
        rounded[start : start + at_once] = (rows / factor.where(factor > 0, 1)[:, None]).round_()
        factors[start : start + at_once] = factor
    return rounded, factors


class Int8Linear(nn.Module):
    """`nn.Linear` in inference, on a weight of 8 bits that is widened whenever it is used."""

    bits = 8
    rounded: Tensor
    factors: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._rounds_inputs = False
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = without_values(linear.weight)
        rounded, factors = round_rows(linear.weight.detach())
        self.register_buffer("rounded", rounded)
        self.register_buffer("factors", factors)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.eval()

    def round_inputs(self) -> bool:
        """See `corellm.quantization.RoundsInputs`."""
        self._rounds_inputs = True
        return True

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out_features]` for `[..., in_features]`."""
        x = rounded_inputs(x) if self._rounds_inputs else x
        return functional.linear(x, (self.rounded * self.factors[:, None]).to(x.dtype), self.bias)


def to_int8(linear: nn.Linear) -> type[Int8Linear] | None:
    """See `corellm.quantization.Quantize`."""
    return Int8Linear if is_quantizable(linear) else None
