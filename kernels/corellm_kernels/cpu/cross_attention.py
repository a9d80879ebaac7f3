"""Attention to encoders' states in the paged cache: nothing is written, and every query sees all states."""

from __future__ import annotations

from ctypes import c_int64

from torch import Tensor

from corellm.attention.backend import AttentionCall, CrossAttentionMetadata, LayerCache
from corellm.errors import ContractError
from corellm_kernels.cpu.arguments import AttentionArguments
from corellm_kernels.cpu.library import empty, launch


def cross_attend(call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata) -> Tensor:
    """Return the attention of queries to states, `[num_tokens, num_heads, value_size]`; see `AttentionBackend`."""
    if cache.key.dtype != call.query.dtype:
        raise ContractError(f"queries of {call.query.dtype} with states of {cache.key.dtype}; give both one type")
    query = call.query if call.query.stride(-1) == 1 else call.query.contiguous()
    num_tokens, heads, size = query.shape
    kv_heads, value_size = cache.value.shape[2:]
    out = empty((num_tokens, heads, value_size), query.dtype)
    tables, starts, lens = metadata.block_tables, metadata.query_start_loc, metadata.num_states_tensor
    given = AttentionArguments(
        query=query.data_ptr(),
        query_stride=query.stride(0),
        query_head_stride=query.stride(1),
        key_cache=cache.key.data_ptr(),
        value_cache=cache.value.data_ptr(),
        key_strides=(c_int64 * 3)(*cache.key.stride()[:3]),
        value_strides=(c_int64 * 3)(*cache.value.stride()[:3]),
        tables=tables.data_ptr(),
        table_stride=tables.stride(0),
        lens=lens.data_ptr(),
        starts=starts.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        out_head_stride=out.stride(1),
        tokens=num_tokens,
        seqs=len(lens),
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        value_size=value_size,
        block_size=cache.block_size,
        scale=call.scale,
        softcap=call.softcap or 0.0,
    )
    launch("attention", (query.dtype,), given, query, cache.key, cache.value, tables, lens, starts, out)
    return out
