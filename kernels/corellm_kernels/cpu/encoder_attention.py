"""Attention of encoders: a batch's own keys and values, all of which every query sees, without a cache.

Registered with transformers as an attention function; what the kernel does not do, SDPA does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from corellm_kernels.cpu.contexts import context_arguments
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
    batch, heads, tokens, size = query.shape
    if query.stride(3) != 1 or (batch > 1 and query.stride(0) != tokens * query.stride(2)):
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
    keys, values = ((x if x.stride(3) == 1 else x.contiguous()).transpose(1, 2) for x in (key, value))
    starts, lens, tables = _layout(batch, tokens, keys.shape[1])
    out = empty((batch, tokens, heads, values.shape[3]), query.dtype)
    queries = query.transpose(1, 2).flatten(0, 1)
    given = context_arguments(
        queries, keys, values, tables, lens, starts, out.flatten(0, 1),
        scale=size**-0.5 if scaling is None else scaling,
    )  # fmt: skip
    launch("attention", (query.dtype,), given, queries, keys, values, starts, lens, tables, out)
    return out, None


def _is_plain(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether the kernel can do what SDPA would, without a mask."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    more = kwargs.get("dropout") or kwargs.get("position_bias") is not None or (causal and query.shape[2] > 1)
    alike = query.dtype == key.dtype == value.dtype and query.shape[0] == key.shape[0]  # else SDPA repeats queries
    return not more and alike and query.dtype in _DTYPES and key.shape[2] > 0


@lru_cache(maxsize=64)
def _layout(batch: int, tokens: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where each row's queries begin, how many keys it has, and its keys as a block of their own."""
    starts = torch.arange(batch + 1, dtype=torch.int32) * tokens
    return starts, torch.full((batch,), keys), torch.arange(batch)[:, None]
