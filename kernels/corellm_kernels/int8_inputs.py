"""Inputs of 8 bits of linear layers whose weights are integers: how they are rounded, in torch's operations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

GROUP = 128
"""Inputs that share a step, where weights are not in groups."""
_LEVELS = 127
_LEAST_STEP = 1e-30
"""Values of smaller steps become zeros."""


def rounded_inputs(x: Tensor, group: int = 0) -> Tensor:
    """Return inputs rounded to 8 bits: the largest absolute value of each group in a row becomes 127 steps.

    Args:
        x: `[..., k]`. Groups of which a value is no number or infinite become NaN.
        group: inputs that share a step, as weights share a scale; the last ones may be fewer. 0 for `GROUP`.
    """
    k, group = x.shape[-1], group or GROUP
    values = functional.pad(x.float(), (0, -k % group)).view(*x.shape[:-1], -(-k // group), group)
    steps = values.abs().amax(-1, keepdim=True) / _LEVELS
    factors = (1 / steps).where(steps > _LEAST_STEP, 0)
    rounded = (values * factors).round_() * (steps + (0 * values).sum(-1, keepdim=True))
    result: Tensor = rounded.flatten(-2)[..., :k].to(x.dtype)
    return result
