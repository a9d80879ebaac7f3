"""Rounding of weights to 4 bits in groups: of several ranges, each group takes the one with the least error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from corellm_kernels.grouped_linear import ZEROS_PER_INTEGER, GroupedWeight, rounded_scales

BITS = 4
_LARGEST, _MIDDLE = 2**BITS - 1, 2 ** (BITS - 1)
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Of a group's range, which are tried: what is outside is clipped, and the rest becomes finer."""
_WEIGHTS_AT_ONCE = 1 << 15
"""So many are rounded at once, in float32: they stay in the processor's cache. Torch has no threads wait for so few."""


@dataclass(frozen=True)
class Grid:
    """Which zeros and scales a group can have.

    Attributes:
        zeros_per_integer: how fine zeros are.
        round_scales: makes of scales in float32 those that can be kept.
        symmetric: whether all zeros are the middle of the integers.
    """

    zeros_per_integer: int
    round_scales: Callable[[Tensor], Tensor]
    symmetric: bool = False


IN_MEMORY = Grid(ZEROS_PER_INTEGER[BITS], rounded_scales)
"""What the kernels keep."""


def grid_of_files(dtype: torch.dtype, *, symmetric: bool) -> Grid:
    """Return what files of published formats keep: whole zeros, scales of a floating type; of 32 bits 24 are used."""
    return Grid(1, partial(_scales_in, dtype), symmetric)


def _scales_in(dtype: torch.dtype, scales: Tensor) -> Tensor:
    if dtype == torch.float32:
        return rounded_scales(scales)
    info = torch.finfo(dtype)
    return scales.clamp(min=info.tiny * info.eps).to(dtype).float()  # none becomes 0


def round_groups(weight: Tensor, group: int, grid: Grid = IN_MEMORY) -> GroupedWeight:
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
                some, scale, zero = _rounded(values.reshape(-1, width), grid)
                groups = slice(columns.start // group, -(-columns.stop // group))
                integers[rows, columns] = some.view(values.shape)
                scales[rows, groups], zeros[rows, groups] = (x.view(len(values), -1) for x in (scale, zero))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(round_rows, range(0, n, at_once)))
    return GroupedWeight(integers, scales, zeros, group, BITS)


def _rounded(values: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """Return integers `[count, group]`, scales and zeros `[count, 1]` of groups of values."""
    low, high = values.amin(1, keepdim=True).clamp(max=0), values.amax(1, keepdim=True).clamp(min=0)
    best = _in_range(values, low, high, grid)
    for share in _SHARES[1:]:
        best = _better(best, _in_range(values, low * share, high * share, grid))
    integers, _, zero, _ = best
    shifted = integers - zero
    fitted = (values * shifted).sum(1, keepdim=True) / shifted.square().sum(1, keepdim=True).clamp(min=1e-6)
    integers, scale, zero, _ = _better(best, _with(values, grid.round_scales(fitted), zero))
    return integers.nan_to_num().to(torch.uint8), scale, zero.nan_to_num()


_Try = tuple[Tensor, Tensor, Tensor, Tensor]
"""Integers, scales, zeros, errors."""


def _in_range(values: Tensor, low: Tensor, high: Tensor, grid: Grid) -> _Try:
    scale = torch.maximum(-low / _MIDDLE, high / (_MIDDLE - 1)) if grid.symmetric else (high - low) / _LARGEST
    scale = grid.round_scales(scale.where(scale != 0, 1))
    if grid.symmetric:
        return _with(values, scale, torch.full_like(scale, _MIDDLE))
    steps = grid.zeros_per_integer
    zero = (-low / scale * steps).round_().clamp_(0, _LARGEST * steps) / steps
    return _with(values, scale, zero)


def _with(values: Tensor, scale: Tensor, zero: Tensor) -> _Try:
    integers = (values / scale + zero).round_().clamp_(0, _LARGEST)
    error = ((integers - zero) * scale).sub_(values).square_().sum(1, keepdim=True)
    return integers, scale, zero, error


def _better(one: _Try, other: _Try) -> _Try:
    take = other[3] < one[3]
    integers, scale, zero, error = (torch.where(take, b, a) for a, b in zip(one, other, strict=True))
    return integers, scale, zero, error
