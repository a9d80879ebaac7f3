"""Writes item embeddings over the text embeddings of their tokens.

Each item embedding is read and written once: `2 * width` elements, no FLOPs, bound by memory; for tokens
without one a program ends at once. torch's masked write first lists the mask's places and waits for their number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2


@triton.jit
def _merge_rows_kernel(inputs_embeds, rows, counts, embeds_stride, rows_stride, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + token).to(tl.int64)
    before = tl.load(counts + token - 1, mask=token > 0, other=0).to(tl.int64)
    if count > before:
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < width
        row = tl.load(rows + before * rows_stride + columns, mask=inside)
        tl.store(inputs_embeds + token * embeds_stride + columns, row, mask=inside)


def merge_rows(inputs_embeds: Tensor, rows: Tensor, counts: Tensor) -> None:
    """Write one item embedding to each token that takes one, in place.

    Args:
        inputs_embeds: `[num_tokens, width]`, rows contiguous.
        rows: `[num_rows, width]`, rows contiguous, in the order of their tokens; of any float type.
        counts: `[num_tokens]`, integers: number of tokens up to each, with it, that take a row.
    """
    num_tokens, width = inputs_embeds.shape
    if len(rows) and width:
        block = min(2048, next_power_of_2(width))
        _merge_rows_kernel[(num_tokens, triton.cdiv(width, block))](
            inputs_embeds, rows, counts, inputs_embeds.stride(0), rows.stride(0), width,
            BLOCK=block, num_warps=max(1, block // 512),
        )  # fmt: skip


def merge_rows_reference(inputs_embeds: Tensor, rows: Tensor, counts: Tensor) -> None:
    """Do what `merge_rows` does, in plain torch."""
    takes = counts.diff(prepend=torch.zeros_like(counts[:1])) > 0
    inputs_embeds[takes] = rows.to(inputs_embeds.dtype)
