"""An attention backend that can be captured, without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache
from corellm.attention.reference import ReferenceAttention


class TensorAttention(AttentionBackend):
    """Decodes from tensors alone, as a GPU's backend does; chunks of prompts as the reference."""

    name = "tensors"
    capturable = True
    softcaps = True
    sinks = True

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        if metadata.num_decodes < len(metadata.seq_lens):
            return ReferenceAttention().forward(call, cache, metadata)
        cache.write(call.key, call.value, metadata.slot_mapping)
        keys, values = (x[metadata.block_tables].flatten(1, 2) for x in (cache.key, cache.value))
        positions, lens = torch.arange(keys.shape[1], device=keys.device), metadata.seq_lens_tensor[:, None]
        seen = (positions < lens) & (positions >= lens - (call.sliding_window or keys.shape[1]))
        groups = call.query.shape[1] // call.key.shape[1]
        keys, values = (x.repeat_interleave(groups, 2) for x in (keys, values))
        scores = torch.einsum("shd,sthd->sht", call.query, keys) * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        if call.sinks is not None:
            scores = torch.cat([scores, call.sinks[:, None].expand(len(scores), -1, 1)], dim=-1)
        weights = scores.softmax(-1).nan_to_num(0.0)[..., : keys.shape[1]]
        return torch.einsum("sht,sthd->shd", weights, values)
