"""Products of low rank in C++, added to the outputs of a linear layer: what adapters of requests are."""

from __future__ import annotations

import torch
from torch import Tensor

from corellm_kernels.cpu.arguments import LowRankArguments
from corellm_kernels.cpu.library import empty, launch

DTYPES = (torch.float32, torch.bfloat16)
RANKS = 4
"""Ranks that are computed at once."""


def add_low_rank(x: Tensor, output: Tensor, a: Tensor, b: Tensor, ranks: Tensor, slot_of_row: Tensor) -> None:
    """See `corellm.modelling.linear_additions.AddLowRank`. Each row's sums are made in one order."""
    most, x = a.shape[1], x if x.stride(1) == 1 else x.contiguous()
    if most % RANKS or output.stride(1) != 1 or not (a.is_contiguous() and b.is_contiguous()):
        raise TypeError(f"expected ranks up to a multiple of {RANKS}, and contiguous rows; got ranks up to {most}")
    if len({tensor.dtype for tensor in (x, output, a, b)}) > 1:
        raise TypeError(f"expected one type, got {x.dtype}, {output.dtype}, {a.dtype} and {b.dtype}")
    inner = empty((len(x) * most,), torch.float32)
    given = LowRankArguments(
        x.data_ptr(), x.stride(0), a.data_ptr(), b.data_ptr(), ranks.data_ptr(), slot_of_row.data_ptr(),
        output.data_ptr(), output.stride(0), inner.data_ptr(), len(x), a.shape[2], b.shape[2], most,
    )  # fmt: skip
    launch("low_rank", (x.dtype,), given, x, output, a, b, ranks, slot_of_row, inner)
