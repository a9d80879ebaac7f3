"""The embedding lookup of a step's tokens and the merge of its items' embeddings, in one pass.

Each token's row is read once, from the table or from the items' rows, and written once: `2 * width` elements a token,
no FLOPs, bound by memory. A lookup with a masked write behind it moves up to twice as much, and cannot look up a
placeholder's id that the table lacks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from corellm_kernels.launch import next_power_of_2


@triton.jit
def _embed_and_merge_kernel(
    input_ids, table, rows, row_index, out, table_stride, rows_stride, out_stride, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(row_index + token).to(tl.int64)
    place = out + token * out_stride + columns
    if row >= 0:
        tl.store(place, tl.load(rows + row * rows_stride + columns, mask=inside), mask=inside)
    else:
        identifier = tl.load(input_ids + token).to(tl.int64)
        tl.store(place, tl.load(table + identifier * table_stride + columns, mask=inside), mask=inside)


def embed_and_merge(input_ids: Tensor, table: Tensor, rows: Tensor, row_index: Tensor) -> Tensor:
    """Each token's row: that of the items where it has one, else that of its id.

    Args:
        input_ids: `[n]`, integers; those of tokens that have a row of the items are not looked up and may be any.
        table: `[vocab, width]`, rows contiguous.
        rows: `[m, width]`, rows contiguous; `m` may be 0.
        row_index: `[n]`, integers: which of `rows`, negative for none.

    Returns:
        `[n, width]`, of the table's type.
    """
    width = table.shape[1]
    out = torch.empty(len(input_ids), width, dtype=table.dtype, device=table.device)
    if out.numel():
        block = min(2048, next_power_of_2(width))
        _embed_and_merge_kernel[(len(input_ids), triton.cdiv(width, block))](
            input_ids, table, rows, row_index, out, table.stride(0), rows.stride(0), width, width,
            BLOCK=block, num_warps=max(1, block // 512),
        )  # fmt: skip
    return out


def embed_and_merge_reference(input_ids: Tensor, table: Tensor, rows: Tensor, row_index: Tensor) -> Tensor:
    """As `embed_and_merge`."""
    merged = row_index >= 0
    out = functional.embedding(input_ids.masked_fill(merged, 0), table)
    out[merged] = rows[row_index[merged].long()].to(out.dtype)
    return out
