"""Rounding of weights to 4 bits in groups: of several ranges, each group takes the one with the least error.

In torch's operations, which the kernels for CPUs follow bit for bit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from corellm_kernels.cpu import library
from corellm_kernels.cpu import rounding as compiled
from corellm_kernels.grouped_linear import ZEROS_PER_INTEGER, GroupedWeight, rounded_scales

BITS = 4
_LARGEST, _MIDDLE = 2**BITS - 1, 2 ** (BITS - 1)
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Of a group's range, which are tried: what is outside is clipped, and the rest becomes finer."""
_WEIGHTS_AT_ONCE = 1 << 15
"""So many are rounded at once, in float32: they stay in the processor's cache. Torch has no threads wait for so few."""
_SUMS = 16
"""Sums of so many parts of a group are side by side, then added by halves: no processor has another order."""
_DROPPED = {torch.float32: 8, torch.bfloat16: 16}
"""Last bits of scales that the kernels round to 0, by the type in which scales are kept."""
_LARGEST_FOR_KERNELS = 1e30
"""Beyond it ranges and errors might be no numbers."""


@dataclass(frozen=True)
class Grid:
    """Which zeros and scales a group can have.

    Attributes:
        zeros_per_integer: how fine zeros are.
        scales: their floating type; of 32 bits 24 are used.
        symmetric: whether all zeros are the middle of the integers.
    """

    zeros_per_integer: int
    scales: torch.dtype = torch.float32
    symmetric: bool = False

    @property
    def least_scale(self) -> float:
        """The least that a scale can be: none becomes 0 in a type of 16 bits."""
        info = torch.finfo(self.scales)
        return -torch.inf if self.scales == torch.float32 else info.tiny * info.eps

    def round_scales(self, scales: Tensor) -> Tensor:
        """Return scales in float32 as they are kept."""
        if self.scales == torch.float32:
            return rounded_scales(scales)
        return scales.clamp(min=self.least_scale).to(self.scales).float()


IN_MEMORY = Grid(ZEROS_PER_INTEGER[BITS])
"""What the kernels keep."""


def grid_of_files(dtype: torch.dtype, *, symmetric: bool) -> Grid:
    """Return what files of published formats keep: whole zeros, scales of a floating type."""
    return Grid(1, dtype, symmetric)


def round_groups(weight: Tensor, group: int, grid: Grid = IN_MEMORY) -> GroupedWeight:
    """Round a weight `[n, k]` of any floating type to 4 bits.

    The scale of each group's best range is fitted to its integers at last, where that makes the error less. A group
    with a value that is no number has a scale that is none.
    """
    if _fits_kernels(weight, grid):
        rows = weight if weight.dtype in _DROPPED else weight.float()
        made = compiled.round_groups(
            rows, group, _SHARES, steps=grid.zeros_per_integer, dropped=_DROPPED[grid.scales], least=grid.least_scale,
            symmetric=grid.symmetric,
        )  # fmt: skip
        return GroupedWeight(*made, group, BITS)
    return _round_groups(weight, group, grid)


def _fits_kernels(weight: Tensor, grid: Grid) -> bool:
    if weight.device.type != "cpu" or grid.scales not in _DROPPED or library.unavailable() is not None:
        return False
    low, high = weight.aminmax()
    return bool(low > -_LARGEST_FOR_KERNELS and high < _LARGEST_FOR_KERNELS)  # no NaN is


def _round_groups(weight: Tensor, group: int, grid: Grid) -> GroupedWeight:
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
    fitted = _sum(values * shifted) / _sum(shifted.square()).clamp(min=1e-6)
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
    error = _sum(((integers - zero) * scale).sub_(values).square_())
    return integers, scale, zero, error


def _sum(values: Tensor) -> Tensor:
    """Return the sums over groups `[count, 1]`, in the kernels' order."""
    padded = functional.pad(values, (0, -values.shape[1] % _SUMS))
    parts = padded.view(len(values), -1, _SUMS)
    total = torch.zeros_like(parts[:, 0])
    for part in parts.unbind(1):
        total += part
    while total.shape[1] > 1:
        first, second = total.chunk(2, dim=1)
        total = first + second
    return total


def _better(one: _Try, other: _Try) -> _Try:
    take = other[3] < one[3]
    integers, scale, zero, error = (torch.where(take, b, a) for a, b in zip(one, other, strict=True))
    return integers, scale, zero, error
