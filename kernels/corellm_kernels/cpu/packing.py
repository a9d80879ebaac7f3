"""Weights in the form in which the C++ kernels multiply them, rounded if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor

from corellm_kernels.cpu.arguments import PackArguments, PackGroupsArguments
from corellm_kernels.cpu.huge_pages import HugePages
from corellm_kernels.cpu.library import launch, pointer
from corellm_kernels.grouped_linear import BLOCK, GroupedLinear, GroupedWeight, Kind, ToGroups, rows_of
from corellm_kernels.int8_linear import Int8Linear

PANEL = 16
"""Columns of the output that are packed together."""
_LINE = 64
"""Bytes of a group's scales and zeros in a panel, of two groups' in a block, or of a block's or group's floats."""
_WEIGHTS_AT_ONCE = 1 << 21
"""So many are packed by one kernel: of weights that lie apart or are rounded to groups, no more are copied."""

Rounding = type[Int8Linear] | ToGroups
"""What rounds weights to something that can be packed."""


class Format(NamedTuple):
    """How a weight is packed, as `csrc/formats.h` describes it."""

    dtype: torch.dtype
    """Type of inputs, and of the weight unless it is rounded."""
    bits: int | None = None
    """Bits of a rounded weight; None if it is not rounded."""
    group: int = 0
    """Inputs that share a scale and a zero; 0 if the weight is in no groups."""
    kind: Kind = "zeros"
    """What groups have."""

    @property
    def types(self) -> tuple[torch.dtype | str, ...]:
        """Types of the kernel that multiplies the weight."""
        if self.group:
            return self.dtype, _groups_type(self.bits, self.kind)
        return (self.dtype, torch.int8) if self.bits else (self.dtype,)

    def size(self, n: int, k: int) -> tuple[int, torch.dtype]:
        """Return how many numbers a packed weight has, and their type."""
        panels = -(-n // PANEL)
        if self.bits and self.group:
            lines = {"zeros": 1, "minima": 2, "blocks": 2 + BLOCK // self.group // 2}[self.kind]
            depths = BLOCK if self.kind == "blocks" else self.group
            return panels * -(-k // depths) * (lines * _LINE + depths * self.bits * PANEL // 8), torch.uint8
        dtype = torch.int8 if self.bits else self.dtype
        group = 1 if dtype == torch.float32 else 2
        return panels * PANEL * -(-k // group) * group, dtype


class Unpacked(NamedTuple):
    """A weight `[n, k]` that is to be packed."""

    n: int
    k: int
    format: Format
    rows: Callable[[int, int], Tensor | GroupedWeight]
    """Returns some, which may be rounded only now."""

    def part(self, first: int, end: int) -> Unpacked:
        """Return some rows, or fewer where there are no more."""
        end = min(end, self.n)
        return self._replace(n=end - first, rows=lambda start, stop: self.rows(first + start, first + stop))


class Packed(NamedTuple):
    """A packed weight `[n, k]`."""

    weight: Tensor
    scale: Tensor | None
    """Factors of rows that are rounded, float32 `[n]`."""


def is_known(rounding: object) -> TypeGuard[Rounding | None]:
    """Whether what rounds a weight, or None, makes something that can be packed."""
    return rounding is None or rounding is Int8Linear or isinstance(rounding, ToGroups)


def unpacked(weights: Sequence[Tensor], rounding: Rounding | None = None) -> Unpacked:
    """Return weights `[rows, k]` of one type, one below another, as one to be packed."""
    n, k, dtype = sum(map(len, weights)), weights[0].shape[1], weights[0].dtype
    rows = partial(rows_of, weights)
    if isinstance(rounding, ToGroups):
        to_groups = rounding
        return Unpacked(
            n, k, Format(dtype, to_groups.bits, to_groups.group), lambda *part: to_groups.round(rows(*part))
        )
    return Unpacked(n, k, Format(dtype, None if rounding is None else rounding.bits), rows)


def unpacked_groups(linear: GroupedLinear) -> Unpacked:
    """Return a layer's weight in groups as one to be packed, its columns in their own order."""
    form = Format(linear.weight.dtype, linear.bits, linear.group, linear.kind)
    return Unpacked(
        linear.out_features, linear.in_features, form, lambda first, end: linear.grouped_weight(slice(first, end))
    )


def pack(weight: Unpacked, empty: Callable[[int, torch.dtype], Tensor] | None = None) -> Packed:
    """Return a weight packed, and rounded to 8 bits as `int8_linear.round_rows` does, if it is to be so.

    Args:
        weight: rows of some are made at a time.
        empty: returns memory for so many numbers of a type; None for huge pages of its own.
    """
    n, k, form = weight.n, weight.k, weight.format
    size, dtype = form.size(n, k)
    packed = (empty or HugePages().empty)(size, dtype)
    scale = torch.empty(n) if form.bits and not form.group else None
    panel, at_once = size // -(-n // PANEL), max(1, _WEIGHTS_AT_ONCE // k // PANEL) * PANEL
    for first in range(0, n, at_once):
        rows, to = weight.rows(first, min(n, first + at_once)), packed[first // PANEL * panel :]
        if isinstance(rows, GroupedWeight):
            _pack_groups(rows, to)
        else:
            _pack_rows(rows, form, to, None if scale is None else scale[first:])
    return Packed(packed, scale)


def _pack_rows(rows: Tensor, form: Format, to: Tensor, scale: Tensor | None) -> None:
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    given = PackArguments(rows.data_ptr(), rows.stride(0), to.data_ptr(), *rows.shape, pointer(scale))
    launch("pack", form.types, given, rows, to, scale)


def _pack_groups(rows: GroupedWeight, to: Tensor) -> None:
    integers, factors = rows.integers.contiguous(), rows.factors.contiguous()
    given = PackGroupsArguments(integers.data_ptr(), factors.data_ptr(), to.data_ptr(), *integers.shape, rows.group)
    launch("pack", (_groups_type(rows.bits, rows.kind),), given, integers, factors, to)


def _groups_type(bits: int | None, kind: Kind) -> str:
    return f"int{bits}_groups" if kind == "zeros" else f"int{bits}_{kind}"
