"""Weights in the form in which the C++ kernels multiply them, rounded to 8 bits if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from corellm_kernels.cpu.arguments import PackArguments
from corellm_kernels.cpu.huge_pages import HugePages
from corellm_kernels.cpu.library import launch, pointer

PANEL = 16
"""Columns of the output that are packed together."""
_WEIGHTS_AT_ONCE = 1 << 21
"""So many are packed by one kernel: of weights that lie apart, no more are copied."""


class Packed(NamedTuple):
    """A weight `[n, k]` as `csrc/formats.h` describes it."""

    weight: Tensor
    scale: Tensor | None
    """Factors of rows that are rounded, float32 `[n]`."""


def packed_size(n: int, k: int, dtype: torch.dtype, *, quantize: bool) -> tuple[int, torch.dtype]:
    """Return how many numbers a packed weight has, and their type."""
    dtype = torch.int8 if quantize else dtype
    group = 1 if dtype == torch.float32 else 2
    return -(-n // PANEL) * PANEL * -(-k // group) * group, dtype


def pack(weights: Sequence[Tensor], *, quantize: bool = False, memory: HugePages | None = None) -> Packed:
    """Return weights packed as one.

    Args:
        weights: `[rows, k]` each, of one type, one below another.
        quantize: round them to 8 bits, as `corellm.quantization.round_rows` does.
        memory: for what is packed.
    """
    n, k, dtype = sum(map(len, weights)), weights[0].shape[1], weights[0].dtype
    size, packed_dtype = packed_size(n, k, dtype, quantize=quantize)
    packed, scale = (memory or HugePages()).empty(size, packed_dtype), torch.empty(n) if quantize else None
    panel = size // -(-n // PANEL)
    for first, block in _blocks(weights, n, max(1, _WEIGHTS_AT_ONCE // k // PANEL) * PANEL):
        rows = block if block.stride(1) == 1 else block.contiguous()
        to, factors = packed[first // PANEL * panel :], None if scale is None else scale[first:]
        given = PackArguments(rows.data_ptr(), rows.stride(0), to.data_ptr(), len(rows), k, pointer(factors))
        launch("pack", (dtype, torch.int8) if quantize else (dtype,), given, rows, to, factors)
    return Packed(packed, scale)


def rows_of(weights: Sequence[Tensor], first: int, end: int) -> Tensor:
    """Return rows of weights one below another; those that lie apart are copied."""
    starts = [0, *accumulate(map(len, weights))]
    spans = [(max(0, first - start), end - start) for start in starts[:-1]]
    pieces = [weight[a:b] for weight, (a, b) in zip(weights, spans, strict=True) if a < min(b, len(weight))]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _blocks(weights: Sequence[Tensor], num_rows: int, at_once: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the rows of weights, some at once, each time with the number of the first."""
    for first in range(0, num_rows, at_once):
        yield first, rows_of(weights, first, first + at_once)
