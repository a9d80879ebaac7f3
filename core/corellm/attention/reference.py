"""The reference backend: each sequence alone, by `scaled_dot_product_attention` where scores are not capped; not fast.

Any device and dtype. Other backends are tested against it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache


def causal_mask(query_len: int, seq_len: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """Return which of `seq_len` tokens each of the last `query_len` sees: `[query_len, seq_len]`, bool."""
    positions = torch.arange(seq_len, device=device)
    queries = positions[seq_len - query_len :, None]
    mask = positions <= queries
    if sliding_window is not None:
        mask &= positions > queries - sliding_window
    return mask


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
    """Return attention of `query [..., queries, head_size]`, scaled and capped as the call says.

    `mask` broadcasts to `[..., queries, keys]` and says what each query sees; None for everything.
    """
    if call.softcap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=call.scale)
    scores = call.softcap * torch.tanh(query @ keys.transpose(-1, -2) * (call.scale / call.softcap))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


class ReferenceAttention(AttentionBackend):
    """Gathers a sequence's blocks and attends, one sequence after another."""

    name = "reference"
    priority = -100
    softcaps = True

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
            mask = causal_mask(query_len, seq_len, call.sliding_window, output.device)
            attended = attend(queries[None], keys[None], values[None], mask, call)
            output[start : start + query_len] = attended[0].transpose(0, 1)
            start += query_len
        return output
