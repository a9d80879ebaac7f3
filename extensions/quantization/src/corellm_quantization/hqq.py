"""Weights as HQQ saves them: integers of 1 to 8 bits in groups, whose zeros are fractions.

A layer's tensors are its integers (`W_q`), scales and zeros, and what its package keeps beside them, each as a tensor
(`shape`, `group_size`, `axis`, `nbits`, `view_as_float`). A weight is `(integer - zero) * scale`.
Knows neither files nor models.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GROUPS, GroupedWeight
from corellm_quantization.grouping import INSTEAD, grouped
from corellm_quantization.widened import Tensors

_SHIFTS = {8: (0,), 6: (0,), 5: (0,), 4: (4, 0), 3: (27, 24, 21, 18, 15, 12, 9, 6, 3, 0), 2: (6, 4, 2, 0)}
_SHIFTS |= {1: (7, 6, 5, 4, 3, 2, 1, 0)}
"""By bits: where a byte, or 32 bits for three, has the integers of rows that lie an equal part of all apart."""


def hqq_layer(tensors: Tensors) -> GroupedWeight | Tensor:
    """Return a weight `[n, k]`: integers if groups lie along the inputs and the kernels have them, else float32."""
    n, k = _numbers(tensors["shape"], 2)
    bits, axis = (_numbers(tensors[name], 1)[0] for name in ("nbits", "axis"))
    group = _numbers(tensors["group_size"], 1)[0] if "group_size" in tensors else n * k
    if bits not in _SHIFTS or axis not in (0, 1) or group < 1 or min(n, k) < 1 or n * k % group:
        raise CheckpointError(f"{n} x {k} weights of {bits} bits, groups of {group} along axis {axis}; {INSTEAD}")
    count = n * k // group
    shape = (count, group) if axis == 1 else (group, count)
    integers = _integers(tensors, bits, shape)
    scales, zeros = (tensors[name].float() for name in ("scale", "zero"))
    if scales.numel() != count or zeros.numel() != count:
        raise CheckpointError(f"scales {tuple(scales.shape)} and zeros {tuple(zeros.shape)} of {count} groups")
    if axis == 1 and k % group == 0 and (group == k or group % GROUPS[0] == 0):
        scales, zeros = scales.view(n, -1), zeros.view(n, -1)
        return grouped(integers.view(n, k), scales, scales * zeros, 4 if bits <= 4 else 8, minima=True)
    places = (-1, 1) if axis == 1 else (1, -1)
    return ((integers - zeros.view(places)) * scales.view(places)).view(n, k)


def _numbers(tensor: Tensor, count: int) -> list[int]:
    if tensor.numel() != count or tensor.is_floating_point():
        raise CheckpointError(f"{tuple(tensor.shape)} of {tensor.dtype}, expected {count} integers")
    return [int(number) for number in tensor.flatten().tolist()]


def _integers(tensors: Tensors, bits: int, shape: tuple[int, int]) -> Tensor:
    """Return unsigned integers, uint8 of a shape."""
    packed = tensors["W_q"]
    if packed.is_floating_point():  # the same bits under another name (`view_as_float`)
        packed = packed.view(torch.int32 if bits == 3 else torch.uint8)
    if packed.dtype != (torch.int32 if bits == 3 else torch.uint8):
        raise CheckpointError(f"integers of {bits} bits in {packed.dtype}")
    shifts = _SHIFTS[bits]
    rows = math.ceil(shape[0] / len(shifts))
    if tuple(packed.shape) != (rows, shape[1]):
        raise CheckpointError(f"{tuple(packed.shape)} packed integers, expected {(rows, shape[1])}")
    mask = (1 << bits) - 1
    return torch.cat([packed >> shift & mask for shift in shifts])[: shape[0]].to(torch.uint8)
