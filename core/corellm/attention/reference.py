"""The reference backend: each sequence alone, by `scaled_dot_product_attention`; plain, not fast.

Any device and dtype. Other backends are tested against it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionMetadata, LayerCache, Rotary


def causal_mask(query_len: int, seq_len: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """Return which of `seq_len` tokens each of the last `query_len` sees: `[query_len, seq_len]`, bool."""
    positions = torch.arange(seq_len, device=device)
    queries = positions[seq_len - query_len :, None]
    mask = positions <= queries
    if sliding_window is not None:
        mask &= positions > queries - sliding_window
    return mask


class ReferenceAttention(AttentionBackend):
    """Gathers a sequence's blocks and attends, one sequence after another."""

    name = "reference"
    priority = -100

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Runs anywhere."""
        return None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None = None,
        rotary: Rotary | None = None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        cache.write(key, value, metadata.slot_mapping)
        output = torch.empty_like(query)
        groups = query.shape[1] // key.shape[1]
        start = 0
        for i, (query_len, seq_len) in enumerate(zip(metadata.query_lens, metadata.seq_lens, strict=True)):
            blocks = metadata.block_tables[i, : -(-seq_len // cache.block_size)]
            # keys, values: [num_heads, seq_len, head_size]
            keys = cache.key[blocks].flatten(0, 1)[:seq_len].transpose(0, 1).repeat_interleave(groups, dim=0)
            values = cache.value[blocks].flatten(0, 1)[:seq_len].transpose(0, 1).repeat_interleave(groups, dim=0)
            attended = F.scaled_dot_product_attention(
                query[start : start + query_len].transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=causal_mask(query_len, seq_len, sliding_window, query.device),
                scale=scale,
            )
            output[start : start + query_len] = attended[0].transpose(0, 1)
            start += query_len
        return output
