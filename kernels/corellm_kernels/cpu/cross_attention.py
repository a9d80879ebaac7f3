"""Attention to encoders' states in the paged cache: nothing is written, and every query sees all states, or a range."""

from __future__ import annotations

from torch import Tensor

from corellm.attention.backend import AttentionCall, CrossAttentionMetadata, LayerCache
from corellm.errors import ContractError
from corellm_kernels.cpu.contexts import context_arguments
from corellm_kernels.cpu.library import empty, launch, pointer

_CUTS_ALL = -(1 << 32)
"""A window that is cut before it begins, wherever the query is: what is before `span_starts` is not seen."""


def cross_attend(call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata) -> Tensor:
    """Return the attention of queries to states, `[num_tokens, num_heads, value_size]`; see `AttentionBackend`."""
    if cache.key.dtype != call.query.dtype:
        raise ContractError(f"queries of {call.query.dtype} with states of {cache.key.dtype}; give both one type")
    query = call.query if call.query.stride(-1) == 1 else call.query.contiguous()
    out = empty((*query.shape[:2], cache.value.shape[3]), query.dtype)
    tables, starts, lens = metadata.block_tables, metadata.query_start_loc, metadata.num_states_tensor
    given = context_arguments(
        query, cache.key, cache.value, tables, lens, starts, out, scale=call.scale, softcap=call.softcap
    )
    ranges = metadata.state_ranges
    if ranges is not None:
        ranges = ranges.contiguous()
        given.window, given.span_starts, given.visible = _CUTS_ALL, pointer(ranges[0]), pointer(ranges[1])
    launch("attention", (query.dtype,), given, query, cache.key, cache.value, tables, lens, starts, ranges, out)
    return out
