"""RMSNorm of every query's and key's head, in place, where a projection has put them: one launch for both.

Each head is read and written once: `2 * size * (heads + kv_heads)` elements a token and about 4 FLOPs an element. The
kernel is bound by memory, and of few tokens by its launch, which is why queries and keys share one. Arithmetic is that
of `norms.rms_norm`.

Norms of queries and keys: Dehghani et al. 2023, arXiv 2302.05442; per head with RMSNorm: Qwen3, arXiv 2505.09388.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2
from corellm_kernels.gpu.norms import rms_norm_reference

_TILE = 1024
"""Elements of a program: 16 bytes of half precision for each thread of four warps."""


@triton.jit
def _norm_heads(
    token_heads, first_head, weight, eps,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (heads < HEADS) & (columns < SIZE)
    place = token_heads + heads * SIZE + columns
    values = tl.load(place, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)
    factors = tl.load(weight + columns, mask=columns < SIZE, other=0.0)
    tl.store(place, (wide * scale[:, None]).to(values.dtype) * factors, mask=inside)


@triton.jit
def _norm_heads_kernel(
    query, key, query_weight, key_weight, query_stride, key_stride, query_eps, key_eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    HEADS_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr, QUERY_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    token = (program // GROUPS).to(tl.int64)
    group = program % GROUPS
    if group < QUERY_GROUPS:
        _norm_heads(
            query + token * query_stride, group * HEADS_BLOCK, query_weight, query_eps, HEADS, HEADS_BLOCK, SIZE, BLOCK
        )
    else:
        first_head = (group - QUERY_GROUPS) * KV_BLOCK
        _norm_heads(key + token * key_stride, first_head, key_weight, key_eps, KV_HEADS, KV_BLOCK, SIZE, BLOCK)


def norm_heads(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, query_eps: float, key_eps: float
) -> None:
    """Divide every head by its root mean square, and multiply it by the weight, in place.

    Args:
        query: `[n, heads, size]`, written to. It and the next may be views of one projection: of any stride from token
            to token, contiguous within one.
        key: `[n, kv_heads, size]`, written to.
        query_weight, key_weight: `[size]`, of the heads' type.
        query_eps, key_eps: added to the mean square.
    """
    num_tokens, heads, size = query.shape
    kv_heads = key.shape[1]
    if not num_tokens:
        return
    block = next_power_of_2(size)
    most = max(1, _TILE // block)
    heads_block, kv_block = min(most, next_power_of_2(heads)), min(most, next_power_of_2(kv_heads))
    query_groups = triton.cdiv(heads, heads_block)
    groups = query_groups + triton.cdiv(kv_heads, kv_block)
    _norm_heads_kernel[(num_tokens * groups,)](
        query, key, query_weight, key_weight, *(x.view(num_tokens, -1).stride(0) for x in (query, key)),
        query_eps, key_eps, HEADS=heads, KV_HEADS=kv_heads, SIZE=size, BLOCK=block,
        HEADS_BLOCK=heads_block, KV_BLOCK=kv_block, QUERY_GROUPS=query_groups, GROUPS=groups, num_warps=4,
    )  # fmt: skip


def norm_heads_reference(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, query_eps: float, key_eps: float
) -> None:
    """Do what `norm_heads` does, in plain torch."""
    query.copy_(rms_norm_reference(query, query_weight, query_eps))
    key.copy_(rms_norm_reference(key, key_weight, key_eps))
