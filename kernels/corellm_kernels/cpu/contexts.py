"""What all attention has in common: queries, their contexts in blocks of keys and values, and the output."""

from __future__ import annotations

from ctypes import c_int64

from torch import Tensor

from corellm_kernels.cpu.arguments import AttentionArguments


def context_arguments(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    lens: Tensor,
    starts: Tensor,
    out: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
) -> AttentionArguments:
    """Return arguments by which every query sees the whole context of its sequence.

    Args:
        query: `[num_tokens, num_heads, head_size]`, the last stride 1.
        keys, values: `[num_blocks, block_size, num_kv_heads, head_size]`, the last stride 1.
        tables: `[num_seqs, max_blocks]` int64, the last stride 1.
        lens: `[num_seqs]` int64: tokens of each context.
        starts: `[num_seqs + 1]` int32: where each sequence's queries begin.
        out: `[num_tokens, num_heads, value_size]`, written to.
        scale: factor on the scores.
        softcap: of the scores; None to leave them.
    """
    return AttentionArguments(
        query=query.data_ptr(),
        query_stride=query.stride(0),
        query_head_stride=query.stride(1),
        key_cache=keys.data_ptr(),
        value_cache=values.data_ptr(),
        key_strides=(c_int64 * 3)(*keys.stride()[:3]),
        value_strides=(c_int64 * 3)(*values.stride()[:3]),
        tables=tables.data_ptr(),
        table_stride=tables.stride(0),
        lens=lens.data_ptr(),
        starts=starts.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        out_head_stride=out.stride(1),
        tokens=query.shape[0],
        seqs=len(lens),
        heads=query.shape[1],
        kv_heads=keys.shape[2],
        size=query.shape[2],
        value_size=values.shape[3],
        block_size=keys.shape[1],
        scale=scale,
        softcap=softcap or 0.0,
    )
