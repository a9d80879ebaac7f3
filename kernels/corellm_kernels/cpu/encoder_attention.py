"""Attention of encoders: a batch's own keys and values, all of which every query sees, without a cache.

Registered with transformers as an attention function; what the kernel does not do, SDPA does.
"""

from __future__ import annotations

from ctypes import c_int64
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from corellm_kernels.cpu.arguments import AttentionArguments
from corellm_kernels.cpu.library import empty, launch

NAME = "corellm_compiled"

_DTYPES = (torch.float32, torch.bfloat16)


def use_in_encoders(model: nn.Module) -> int:
    """Let every part of `model` whose attention is SDPA use the kernel; return how many configurations were changed."""
    AttentionInterface.register(NAME, encoder_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    ours = [config for config in configs.values() if getattr(config, "_attn_implementation", None) == "sdpa"]
    for config in ours:
        config._attn_implementation = {"": NAME}  # not in the configurations inside it
    return len(ours)


def encoder_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return attention `[batch, tokens, heads, size]` of `[batch, heads, tokens, size]`, and no weights.

    As `sdpa_attention_forward`, which runs for masks, causal attention and other types.
    """
    if attention_mask is not None or not _is_plain(module, query, key, value, kwargs):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    (batch, heads, tokens, size), (kv_heads, keys, value_size) = query.shape, value.shape[1:]
    if query.stride(3) != 1 or (batch > 1 and query.stride(0) != tokens * query.stride(2)):
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (key, value))
    starts, lens, tables = _layout(batch, tokens, keys)
    out = empty((batch, tokens, heads, value_size), query.dtype)
    given = AttentionArguments(
        query=query.data_ptr(),
        query_stride=query.stride(2),
        query_head_stride=query.stride(1),
        key_cache=key.data_ptr(),
        value_cache=value.data_ptr(),
        key_strides=(c_int64 * 3)(key.stride(0), key.stride(2), key.stride(1)),
        value_strides=(c_int64 * 3)(value.stride(0), value.stride(2), value.stride(1)),
        tables=tables.data_ptr(),
        table_stride=1,
        lens=lens.data_ptr(),
        starts=starts.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(1),
        out_head_stride=out.stride(2),
        tokens=batch * tokens,
        seqs=batch,
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        value_size=value_size,
        block_size=keys,
        scale=size**-0.5 if scaling is None else scaling,
    )
    launch("attention", (query.dtype,), given, query, key, value, starts, lens, tables, out)
    return out, None


def _is_plain(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether the kernel can do what SDPA would, without a mask."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    more = kwargs.get("dropout") or kwargs.get("position_bias") is not None or (causal and query.shape[2] > 1)
    return not more and query.dtype == key.dtype == value.dtype and query.dtype in _DTYPES and key.shape[2] > 0


@lru_cache(maxsize=64)
def _layout(batch: int, tokens: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each row's queries begin, how many keys it has, and its keys as a block of their own."""
    starts = torch.arange(batch + 1, dtype=torch.int32) * tokens
    return starts, torch.full((batch,), keys), torch.arange(batch)
