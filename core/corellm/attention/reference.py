"""The reference backend: each sequence alone, by `scaled_dot_product_attention` where that can do it; not fast.

Scores that are capped and attention sinks are written out. Any device and dtype. Other backends are tested against it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache


def causal_mask(
    query_len: int,
    seq_len: int,
    sliding_window: int | None,
    device: torch.device,
    visible_lens: Tensor | None = None,
    span_starts: Tensor | None = None,
) -> Tensor:
    """Return which of `seq_len` tokens each of the last `query_len` sees: `[query_len, seq_len]`, bool.

    `visible_lens` and `span_starts`, `[query_len]`, are as in `AttentionMetadata`, but of these queries alone.
    """
    positions = torch.arange(seq_len, device=device)
    queries = positions[seq_len - query_len :, None]
    mask = positions <= queries if visible_lens is None else positions < visible_lens[:, None]
    if sliding_window is not None:
        within = positions > queries - sliding_window
        mask &= within if span_starts is None else within | (positions >= span_starts[:, None])
    return mask


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
    """Return attention of `query [batch, heads, queries, head_size]`, scaled, capped and with sinks as the call says.

    Key/value heads may take the place of heads, with their query heads among the queries: each then has one query.
    `mask` broadcasts to `[batch, heads, queries, keys]` and says what each query sees, or is added to scores; or None.
    """
    if call.softcap is None and call.sinks is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=call.scale)
    scores = query @ keys.transpose(-1, -2) * (call.scale / (call.softcap or 1.0))
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if call.sinks is not None:
        sinks = call.sinks.view(query.shape[1], -1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values


def biased(call: AttentionCall, own: slice, mask: Tensor) -> Tensor:
    """Return what is added to the scores of a sequence's last queries, `[num_heads, num_queries, seq_len]`.

    Args:
        call: one with a bias.
        own: the queries.
        mask: what each sees, `[num_queries, seq_len]`.
    """
    assert call.bias is not None
    query_len, seq_len = mask.shape
    pairs = call.bias.of_queries(own).of_pairs(torch.arange(seq_len - query_len, seq_len, device=mask.device), seq_len)
    return pairs.transpose(0, 1).masked_fill(~mask, float("-inf")).to(call.query.dtype)


class ReferenceAttention(AttentionBackend):
    """Gathers a sequence's blocks and attends, one sequence after another."""

    name = "reference"
    priority = -100
    softcaps = True
    two_way = True
    sinks = True
    biases = True

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Runs anywhere."""
        return None

    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.forward`."""
        cache.write(call.key, call.value, metadata.slot_mapping)
        output = call.query.new_empty(*call.query.shape[:2], call.value.shape[2])
        groups = call.query.shape[1] // call.key.shape[1]
        start = 0
        for i, (query_len, seq_len) in enumerate(zip(metadata.query_lens, metadata.seq_lens, strict=True)):
            blocks = metadata.block_tables[i, : -(-seq_len // cache.block_size)]
            # keys, values: [num_heads, seq_len, head_size]
            keys = cache.key[blocks].flatten(0, 1)[:seq_len].transpose(0, 1).repeat_interleave(groups, dim=0)
            values = cache.value[blocks].flatten(0, 1)[:seq_len].transpose(0, 1).repeat_interleave(groups, dim=0)
            queries = call.query[start : start + query_len].transpose(0, 1)
            own = slice(start, start + query_len)
            mask = causal_mask(query_len, seq_len, call.sliding_window, output.device, *metadata.seen_by(own))
            mask = mask if call.bias is None else biased(call, own, mask)
            attended = attend(queries[None], keys[None], values[None], mask, call)
            output[start : start + query_len] = attended[0].transpose(0, 1)
            start += query_len
        return output
