"""Integers of published formats, as weights in groups. Knows neither files nor which format they are of."""

from __future__ import annotations

import torch
from torch import Tensor

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GROUPS, GroupedWeight, rounded_scales
from corellm_quantization.widened import Tensors

INSTEAD = "take the checkpoint in bfloat16 or float16, with quantization='int4' or 'int8'"
"""What the user may do."""


def unpacked(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Return the integers of each 32 bits, the lowest first, side by side along a dimension."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    shifts = shifts[:, None] if dim == 0 else shifts
    integers = (packed.unsqueeze(dim + 1) >> shifts) & (1 << bits) - 1
    return integers.to(torch.uint8).flatten(dim, dim + 1)


def signed_bytes(tensors: Tensors) -> GroupedWeight:
    """Return a weight of signed integers of 8 bits: `weight`, `weight_scale`, `weight_zero_point` if it has one."""
    integers, scales = tensors["weight"], tensors["weight_scale"]
    if integers.dtype != torch.int8:
        raise CheckpointError(f"weights of {integers.dtype}; integers of 8 bits can be read")
    scales = scales.expand(len(integers), 1) if scales.numel() == 1 else scales.view(len(integers), -1)
    zeros = tensors.get("weight_zero_point", torch.zeros_like(scales)).expand_as(scales)
    unsigned, zeros = ((x.to(torch.int16) + 128).to(torch.uint8) for x in (integers, zeros))
    return grouped(unsigned, scales, zeros, 8)


def grouped(
    integers: Tensor, scales: Tensor, zeros: Tensor, bits: int, order: Tensor | None = None, *, minima: bool = False
) -> GroupedWeight:
    """Return a weight, in the largest groups that the kernels have: larger ones are divided.

    Args:
        integers, order, bits: as of `GroupedWeight`.
        scales: `[n, groups]`; 24 bits are kept, or all with minima.
        zeros: `[n, groups]`: whole, or what is subtracted after the scale.
        minima: which of both zeros are.
    """
    n, k = integers.shape
    if scales.shape != zeros.shape or scales.shape[0] != n or not scales.shape[1]:
        raise CheckpointError(f"scales {tuple(scales.shape)} and zeros {tuple(zeros.shape)} of integers {(n, k)}")
    if not minima and zeros.max() > 255:
        raise CheckpointError(f"a zero of {int(zeros.max())}, above 255; {INSTEAD}")
    size = -(-k // scales.shape[1])  # of a published group
    group = max(known for known in GROUPS if scales.shape[1] == 1 or size % known == 0)
    times = -(-size // group)
    scales, zeros = (x.float().repeat_interleave(times, 1)[:, : -(-k // group)] for x in (scales, zeros))
    scales = scales if minima else rounded_scales(scales)
    return GroupedWeight(integers.contiguous(), scales, zeros, group, bits, order, minima)
