"""The CPU backend: torch kernels only, arranged by measurement (`bench/attention.py` compares it with compiled ones).

Decodes: several sequences at once; a group's blocks are gathered by `index_select` into scratch memory that stays in
the processor's cache; grouped-query heads are folded into the query's length (SDPA's own grouped-query path is five
times slower in bfloat16). Prefills: one sequence at a time, straight from the batch if none of it was cached.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache
from corellm.attention.reference import attend, biased, causal_mask

_SCRATCH_BYTES = 8 << 20
"""Bytes of gathered keys and values per decode group; more would leave the processor's cache before use."""


class CpuAttention(AttentionBackend):
    """Batched gather for decodes, per-sequence SDPA for prefills."""

    name = "cpu"
    priority = 0
    softcaps = True
    two_way = True
    sinks = True
    biases = True

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._groups: list[_DecodeGroup] = []

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Refuse all devices but the CPU."""
        return None if device.type == "cpu" else f"runs on the CPU, not on {device}"

    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.forward`."""
        cache.write(call.key, call.value, metadata.slot_mapping)
        output = call.query.new_empty(*call.query.shape[:2], call.value.shape[2])
        if metadata.num_decodes:
            for group in self._decode_groups(metadata, cache, call.sliding_window):
                group.attend(call, cache, output)
        stop = metadata.num_decodes
        for i in range(metadata.num_decodes, len(metadata.seq_lens)):
            start, stop = stop, stop + metadata.query_lens[i]
            keys, values = call.key[start:stop], call.value[start:stop]
            if len(keys) < metadata.seq_lens[i]:  # earlier chunks are in the cache
                keys, values = _gather(cache, metadata.block_tables[i], metadata.seq_lens[i])
            seen = metadata.seen_by(slice(start, stop))
            output[start:stop] = _attend_prefill(call, slice(start, stop), keys, values, *seen)
        return output

    def _decode_groups(
        self, metadata: AttentionMetadata, cache: LayerCache, sliding_window: int | None
    ) -> list[_DecodeGroup]:
        """Return the step's decode groups, planned once for all layers of equal shape."""
        token_bytes = 2 * cache.key[0, 0].numel() * cache.key.element_size()
        budget = max(1, _SCRATCH_BYTES // (token_bytes * cache.block_size))
        plan = (budget, cache.block_size, sliding_window)
        if self._metadata is not metadata or self._groups[0].plan != plan:
            self._metadata = metadata
            self._groups = _plan_decodes(metadata, cache.block_size, budget, sliding_window)
        return self._groups


class _DecodeGroup:
    """Decodes of similar length that share one gather and one SDPA call."""

    def __init__(
        self, metadata: AttentionMetadata, members: list[int], block_size: int, budget: int, window: int | None
    ) -> None:
        self.plan = (budget, block_size, window)
        lens = metadata.seq_lens_tensor[members]
        longest = int(lens.max())
        num_blocks = -(-longest // block_size)
        padded = num_blocks * block_size
        self.shape = (len(members), padded)
        whole_batch = members == list(range(len(metadata.seq_lens)))
        self.rows = slice(0, len(members)) if whole_batch else torch.tensor(members)
        self.blocks = metadata.block_tables[self.rows, :num_blocks].flatten()
        positions = torch.arange(padded)
        mask = positions < lens[:, None]
        if window is not None:
            mask &= positions >= lens[:, None] - window
        self.mask = None if bool(mask.all()) else mask[:, None, None]
        # Stale slots behind the sequence's end may hold NaN, which a mask does not remove: NaN times 0 is NaN.
        self.behind, self.last = (positions >= lens[:, None]).flatten().nonzero().flatten(), lens.long() - 1

    def attend(self, call: AttentionCall, cache: LayerCache, output: Tensor) -> None:
        """Attend for the group's rows of the query and put the result into the same rows of `output`."""
        num_seqs, padded = self.shape
        kv_heads, head_size = cache.key.shape[2:]
        # keys, values: [num_seqs, num_kv_heads, padded, head_size]
        keys, values = (
            tensor.index_select(0, self.blocks)
            .flatten(0, 1)
            .index_fill_(0, self.behind, 0)
            .view(num_seqs, padded, kv_heads, -1)
            .transpose(1, 2)
            for tensor in (cache.key, cache.value)
        )
        folded = call.query[self.rows].view(num_seqs, kv_heads, -1, head_size)
        attended = attend(folded, keys, values, self.mask if call.bias is None else self._biased(call, folded), call)
        output[self.rows] = attended.reshape(num_seqs, -1, attended.shape[-1])

    def _biased(self, call: AttentionCall, folded: Tensor) -> Tensor:
        """Return what is added to the group's scores, of queries `folded`."""
        assert call.bias is not None
        pairs = call.bias.of_queries(self.rows).of_pairs(self.last, self.shape[1]).reshape(*folded.shape[:3], -1)
        seen = torch.ones_like(pairs, dtype=torch.bool) if self.mask is None else self.mask
        return pairs.masked_fill(~seen, float("-inf")).to(call.query.dtype)


def _plan_decodes(
    metadata: AttentionMetadata, block_size: int, budget: int, sliding_window: int | None
) -> list[_DecodeGroup]:
    """Return groups of decodes of similar length, each within the budget of padded blocks."""
    members: list[int] = []
    groups: list[list[int]] = []
    for i in sorted(range(metadata.num_decodes), key=lambda i: metadata.seq_lens[i]):
        blocks = -(-metadata.seq_lens[i] // block_size)
        if members and blocks * (len(members) + 1) > budget:
            groups.append(members)
            members = []
        members.append(i)
    if members:
        groups.append(members)
    return [_DecodeGroup(metadata, sorted(group), block_size, budget, sliding_window) for group in groups]


def _gather(cache: LayerCache, block_table: Tensor, seq_len: int) -> tuple[Tensor, Tensor]:
    """Return a sequence's keys and values, `[seq_len, num_kv_heads, head_size]`."""
    blocks = block_table[: -(-seq_len // cache.block_size)]
    return (
        cache.key.index_select(0, blocks).flatten(0, 1)[:seq_len],
        cache.value.index_select(0, blocks).flatten(0, 1)[:seq_len],
    )


def _attend_prefill(
    call: AttentionCall, own: slice, keys: Tensor, values: Tensor, visible: Tensor | None, starts: Tensor | None
) -> Tensor:
    """Return attention of a call's queries `own`, the last tokens of a sequence, over all its tokens."""
    query_len, seq_len, window = own.stop - own.start, keys.shape[0], call.sliding_window
    is_causal = visible is None or torch.equal(visible, torch.arange(seq_len - query_len, seq_len).int() + 1)
    groups = call.query.shape[1] // keys.shape[1]
    heads_first = [x.transpose(0, 1) for x in (call.query[own], keys, values)]
    q, k, v = (x[None] if i == 0 else x.repeat_interleave(groups, dim=0)[None] for i, x in enumerate(heads_first))
    is_plain = is_causal and call.softcap is None and call.sinks is None and call.bias is None
    if is_plain and query_len == seq_len and (window is None or window >= seq_len):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=call.scale)[0].transpose(0, 1)
    mask = causal_mask(query_len, seq_len, window, keys.device, None if is_causal else visible, starts)
    return attend(q, k, v, mask if call.bias is None else biased(call, own, mask), call)[0].transpose(0, 1)
