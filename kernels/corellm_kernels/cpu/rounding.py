"""Rounding of weights to 4 bits in groups, in C++: what to try is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from corellm_kernels.cpu.arguments import RoundGroupsArguments
from corellm_kernels.cpu.library import launch


def round_groups(
    weight: Tensor, group: int, shares: Sequence[float], *, steps: int, dropped: int, least: float, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight to 4 bits, each group in the range that has the least error.

    Args:
        weight: `[n, k]`, float32 or bfloat16, finite and below 1e30.
        group: inputs that share a scale and a zero.
        shares: of a group's range, which are tried.
        steps: of zeros in an integer.
        dropped: last bits of a scale, which are rounded to 0.
        least: scale.
        symmetric: whether all zeros are 8.

    Returns:
        Integers, uint8 `[n, k]`; scales and zeros, float32 `[n, groups]`.
    """
    (n, k), groups = weight.shape, -(-weight.shape[1] // group)
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    integers, tried = torch.empty((n, k), dtype=torch.uint8), torch.tensor(shares)
    scales, zeros = torch.empty((n, groups)), torch.empty((n, groups))
    given = RoundGroupsArguments(
        weight.data_ptr(), weight.stride(0), integers.data_ptr(), scales.data_ptr(), zeros.data_ptr(), n, k, group,
        tried.data_ptr(), len(shares), steps, least, dropped, symmetric,
    )  # fmt: skip
    launch("round_groups", (weight.dtype,), given, weight, integers, scales, zeros, tried)
    return integers, scales, zeros
