"""Attention of a decoder to its encoder's states, whose keys and values lie in the paged cache: cross attention.

Every query of a sequence sees all states of that sequence's encoder, or a range of them. A layer's states are written
once, into blocks of their own in the layer's cache, and only read after that. Knows neither models nor requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, CrossAttentionMetadata, LayerCache
from corellm.attention.reference import attend


@dataclass(frozen=True)
class CrossAttention:
    """One step's attention to encoders' states.

    `keys` stands for the cached keys and values where modelling code passes keys and values to attention: a layer that
    is called with it attends to the states.
    """

    backend: AttentionBackend
    caches: dict[int, LayerCache]
    """By layer."""
    metadata: CrossAttentionMetadata
    slots: Tensor | None
    """`[num_new_states]` int64: where the states that are computed in this step go; None if there are none."""
    keys: Tensor

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the step's new states' keys and values, `[num_new_states, num_kv_heads, head_size]`."""
        assert self.slots is not None
        self.caches[layer].write(key, value, self.slots)

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Return the attention of queries `[num_tokens, num_heads, head_size]` to the states of their sequences."""
        nothing = query.new_empty(0, 0, 0)
        call = AttentionCall(query, nothing, nothing, scale, softcap=softcap)
        return cross_attend(self.backend, call, self.caches[layer], self.metadata)


def cross_attend(
    backend: AttentionBackend, call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata
) -> Tensor:
    """Return attention to states, by the backend or, where it leaves that to others, by plain torch."""
    attended = backend.cross_attend(call, cache, metadata)
    return _by_torch(call, cache, metadata) if attended is None else attended


def _by_torch(call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata) -> Tensor:
    """Return attention to states, one sequence after another; see `AttentionBackend.cross_attend`."""
    groups = call.query.shape[1] // cache.key.shape[2]
    output = call.query.new_empty(*call.query.shape[:2], cache.value.shape[3])
    start = 0
    for i, (query_len, num_states) in enumerate(zip(metadata.query_lens, metadata.num_states, strict=True)):
        if not num_states:
            output[start : start + query_len] = 0
            start += query_len
            continue
        blocks = metadata.block_tables[i, : -(-num_states // cache.block_size)]
        # keys, values: [num_heads, num_states, head_size]
        keys, values = (
            tensor[blocks].flatten(0, 1)[:num_states].transpose(0, 1).repeat_interleave(groups, dim=0)
            for tensor in (cache.key, cache.value)
        )
        queries = call.query[start : start + query_len].transpose(0, 1)
        mask = _range_mask(metadata, slice(start, start + query_len), num_states)
        attended = attend(queries[None], keys[None], values[None], mask, call)
        output[start : start + query_len] = attended[0].transpose(0, 1)
        start += query_len
    return output


def _range_mask(metadata: CrossAttentionMetadata, queries: slice, num_states: int) -> Tensor | None:
    """Return which states each of a sequence's queries sees, `[num_queries, num_states]` bool; None for all."""
    if metadata.state_ranges is None:
        return None
    first, end = metadata.state_ranges[:, queries, None]
    states = torch.arange(num_states, device=first.device)
    mask: Tensor = (states >= first) & (states < end)
    return mask


def stand_in(device: torch.device) -> Tensor:
    """Return a tensor that stands for cached keys and values: nothing reads it, but some ask whether it is empty."""
    return torch.zeros(1, 1, 1, 1, device=device)
