"""Products of low rank in C++, added to the outputs of a linear layer: what adapters of requests are.

Inside a layer's own product where its weight is packed (`cpu.linear`), else after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array

import torch
from torch import Tensor

from corellm.modelling.linear_additions import PANEL, LowRankAddition, LowRankSlots
from corellm_kernels.cpu.arguments import LowRankArguments, LowRankPart
from corellm_kernels.cpu.library import empty, launch

DTYPES = (torch.float32, torch.bfloat16)
RANKS = 4
"""Ranks that are computed at once."""


def add_low_rank(x: Tensor, output: Tensor, slots: LowRankSlots, slot_of_row: Tensor) -> None:
    """See `corellm.modelling.linear_additions.AddLowRank`. Each row's sums are made in one order."""
    x = x if x.stride(1) == 1 else x.contiguous()
    if output.stride(1) != 1:
        raise TypeError("expected contiguous rows of outputs")
    if x.dtype != output.dtype:
        raise TypeError(f"expected one type, got {x.dtype} and {output.dtype}")
    factors = Factors([(slice(0, output.shape[1]), slots)], x.shape[1], x.dtype)
    inner = factors.room(len(x))
    given = factors.arguments(x, slot_of_row, inner)
    given.out, given.out_stride, given.outputs = output.data_ptr(), output.stride(0), output.shape[1]
    launch("low_rank", (x.dtype,), given, x, output, slots.a, slots.b, slots.ranks, slot_of_row, inner)


class Factors:
    """What is added to parts of a layer's outputs, as the kernels take it.

    Args:
        parts: outputs and their factors.
        in_features, dtype: of the layer.

    Raises:
        TypeError: the kernels would read other memory.
    """

    def __init__(self, parts: Sequence[tuple[slice, LowRankSlots]], in_features: int, dtype: torch.dtype) -> None:
        self.parts = list(parts)
        self._in_features = in_features
        self._array: Array[LowRankPart] = (LowRankPart * len(parts))()
        self._width = 0
        for given, (outputs, slots) in zip(self._array, parts, strict=True):
            num_slots, most, count = *slots.a.shape[:2], outputs.stop - outputs.start
            _check(slots, (num_slots, most, in_features), count, dtype)
            given.a, given.b, given.ranks = slots.a.data_ptr(), slots.b.data_ptr(), slots.ranks.data_ptr()
            given.most, given.column, given.outputs, given.inner = most, outputs.start, count, self._width
            self._width += most

    def room(self, num_rows: int) -> Tensor:
        """Return memory for inner products."""
        return empty((num_rows * self._width,), torch.float32)

    def arguments(self, x: Tensor, slot_of_row: Tensor, inner: Tensor) -> LowRankArguments:
        """Return a kernel's arguments for rows of `x`."""
        return LowRankArguments(
            x.data_ptr(), x.stride(0), self._array, len(self._array), slot_of_row.data_ptr(),
            inner.data_ptr(), self._width, len(x), self._in_features,
        )  # fmt: skip


def takes(addition: LowRankAddition, dtype: torch.dtype) -> bool:
    """Whether the kernels add these factors to layers of a type."""
    return dtype in DTYPES and addition.slots.a.dtype == dtype


def _check(slots: LowRankSlots, shape: tuple[int, int, int], out_features: int, dtype: torch.dtype) -> None:
    if {slots.a.dtype, slots.b.dtype} != {dtype} or slots.ranks.dtype != torch.int64:
        raise TypeError(f"expected one type, {dtype}, got factors of {slots.a.dtype} and {slots.b.dtype}")
    num_slots, most, _ = shape
    group = 4 // dtype.itemsize
    wanted = (num_slots, -(-out_features // PANEL), most // group, PANEL, group)
    if most % RANKS or tuple(slots.a.shape) != shape or tuple(slots.b.shape) != wanted or len(slots.ranks) != num_slots:
        raise TypeError(
            f"expected ranks up to a multiple of {RANKS}, and factors of shapes {shape} and {wanted}; got "
            f"{tuple(slots.a.shape)} and {tuple(slots.b.shape)}"
        )
    if not (slots.a.is_contiguous() and slots.b.is_contiguous() and slots.ranks.is_contiguous()):
        raise TypeError("expected contiguous factors")
