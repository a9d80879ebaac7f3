"""Rounding of weights to 4 bits in groups: of several ranges, each group takes the one with the least error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from corellm_kernels.grouped_linear import ZEROS_PER_INTEGER, GroupedWeight, rounded_scales

BITS = 4
_LARGEST = 2**BITS - 1
_STEPS = ZEROS_PER_INTEGER[BITS]
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Of a group's range, which are tried: what is outside is clipped, and the rest becomes finer."""
_WEIGHTS_AT_ONCE = 1 << 15
"""So many are rounded at once, in float32: they stay in the processor's cache. Torch has no threads wait for so few."""


def round_groups(weight: Tensor, group: int) -> GroupedWeight:
    """Round a weight `[n, k]` of any floating type to 4 bits.

    The scale of each group's best range is fitted to its integers at last, where that makes the error less. A group
    with a value that is no number has a scale that is none.
    """
    n, k = weight.shape
    whole = k // group * group
    integers = torch.empty((n, k), dtype=torch.uint8, device=weight.device)
    scales, zeros = (torch.empty((n, -(-k // group)), dtype=torch.float32, device=weight.device) for _ in range(2))
    at_once = max(1, _WEIGHTS_AT_ONCE // k)

    def round_rows(start: int) -> None:
        rows = slice(start, start + at_once)
        for columns, width in ((slice(0, whole), group), (slice(whole, k), k - whole)):
            values = weight[rows, columns].float()
            if values.numel():
                some, scale, zero = _rounded(values.reshape(-1, width))
                groups = slice(columns.start // group, -(-columns.stop // group))
                integers[rows, columns] = some.view(values.shape)
                scales[rows, groups], zeros[rows, groups] = (x.view(len(values), -1) for x in (scale, zero))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(round_rows, range(0, n, at_once)))
    return GroupedWeight(integers, scales, zeros, group, BITS)


def _rounded(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers `[count, group]`, scales and zeros `[count, 1]` of groups of values."""
    low, high = values.amin(1, keepdim=True).clamp(max=0), values.amax(1, keepdim=True).clamp(min=0)
    best = _in_range(values, low, high)
    for share in _SHARES[1:]:
        best = _better(best, _in_range(values, low * share, high * share))
    integers, _, zero, _ = best
    shifted = integers - zero
    fitted = (values * shifted).sum(1, keepdim=True) / shifted.square().sum(1, keepdim=True).clamp(min=1e-6)
    integers, scale, zero, _ = _better(best, _with(values, rounded_scales(fitted), zero))
    return integers.nan_to_num().to(torch.uint8), scale, zero.nan_to_num()


_Try = tuple[Tensor, Tensor, Tensor, Tensor]
"""Integers, scales, zeros, errors."""


def _in_range(values: Tensor, low: Tensor, high: Tensor) -> _Try:
    scale = (high - low) / _LARGEST
    scale = rounded_scales(scale.where(scale != 0, 1))
    zero = (-low / scale * _STEPS).round_().clamp_(0, 255) / _STEPS
    return _with(values, scale, zero)


def _with(values: Tensor, scale: Tensor, zero: Tensor) -> _Try:
    integers = (values / scale + zero).round_().clamp_(0, _LARGEST)
    error = ((integers - zero) * scale).sub_(values).square_().sum(1, keepdim=True)
    return integers, scale, zero, error


def _better(one: _Try, other: _Try) -> _Try:
    take = other[3] < one[3]
    integers, scale, zero, error = (torch.where(take, b, a) for a, b in zip(one, other, strict=True))
    return integers, scale, zero, error
