"""One tile of a paged cache, folded into a running softmax: what decodes and prefills have in common.

The softmax is online (Milakov and Gimelshein 2018, arXiv 1805.02867) and in base 2; scores come scaled by `log2(e)`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


@triton.jit
def fold_tile(
    q, table, positions, inside, seen, peak, total, mixed,
    key_cache, value_cache, key_scale, value_scale, kv_head, scale,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    scale_block_stride, scale_slot_stride,
    HEAD: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend from the rows of `q [rows, HEAD_BLOCK]` to the tokens at `positions [tile]` of one sequence.

    `inside [tile]` are tokens that exist, `seen [rows, tile]` (looked at if `MASKED`) those that a row sees; `peak`,
    `total` `[rows]` and `mixed [rows, VALUE_BLOCK]` are the softmax so far, and are returned as they are after.
    """
    channels = tl.arange(0, HEAD_BLOCK)
    value_channels = tl.arange(0, VALUE_BLOCK)
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    slots = positions % BLOCK_SIZE
    key_places = blocks * key_block_stride + slots * key_slot_stride + kv_head * key_head_stride
    value_places = blocks * value_block_stride + slots * value_slot_stride + kv_head * value_head_stride
    key_mask = inside[None, :] & (channels < HEAD)[:, None]
    value_mask = inside[:, None] & (value_channels < VALUE)[None, :]
    keys = tl.load(key_cache + key_places[None, :] + channels[:, None], mask=key_mask, other=0.0)
    scores = tl.dot(q, keys.to(q.dtype), input_precision=PRECISION) * scale
    if QUANTIZED:
        scale_places = blocks * scale_block_stride + slots * scale_slot_stride + kv_head
        scores *= tl.load(key_scale + scale_places, mask=inside, other=0.0)[None, :]
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: no infinity minus infinity
    weights = tl.exp2(scores - base[:, None])
    faded = tl.exp2(peak - base)
    total = total * faded + tl.sum(weights, axis=1)
    values = tl.load(value_cache + value_places[:, None] + value_channels[None, :], mask=value_mask, other=0.0)
    if QUANTIZED:
        weights *= tl.load(value_scale + scale_places, mask=inside, other=0.0)[None, :]
    mixed = tl.dot(weights.to(q.dtype), values.to(q.dtype), mixed * faded[:, None], input_precision=PRECISION)
    return new_peak, total, mixed


def gather_context(cache: Tensor, scales: Tensor | None, block_tables: Tensor) -> Tensor:
    """What a cache holds for each sequence, in float32: `[num_seqs, max_blocks * block_size, num_kv_heads, size]`."""
    found = cache[block_tables.long()].float()
    if scales is not None:
        found *= scales[block_tables.long()][..., None]
    return found.flatten(1, 2)


def cache_arguments(key_cache: Tensor, value_cache: Tensor, key_scale: Tensor | None) -> tuple[int, ...]:
    """The strides that `fold_tile` wants, in its order."""
    scales = (0, 0) if key_scale is None else key_scale.stride()[:2]
    return (*key_cache.stride()[:3], *value_cache.stride()[:3], *scales)


def product_precision(dtype: torch.dtype) -> str:
    """Of matrix products: full for float32, where tensor cores would cut it to 10 bits."""
    return "ieee" if dtype == torch.float32 else "tf32"
