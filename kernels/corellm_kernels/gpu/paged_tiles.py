"""One tile of a paged cache, folded into a running softmax; shared by decodes and prefills.

The softmax is online (Milakov and Gimelshein 2018, arXiv 1805.02867) and in base 2: scores, caps and sinks have a
factor of `log2(e)`.

Loops over tiles have five stages: the block table is read four tiles ahead, keys and values two. With fewer, Triton
pipelines the table or the tokens, but not both, and every tile waits for memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def begin_softmax(sinks, heads, exists, ROWS: tl.constexpr, SINKS: tl.constexpr):
    """Return peak and total `[ROWS]` of a softmax before any token: of nothing, or of each row's sink alone."""
    if SINKS:
        peak = tl.load(sinks + heads, mask=exists, other=0.0).to(tl.float32) * LOG2_E
        total = tl.full([ROWS], 1.0, tl.float32)
    else:
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    return peak, total


@triton.jit
def fold_tile(
    q, table, tile, stop, seen, peak, total, mixed, key_cache, value_cache, key_scale, value_scale, kv_head, scale,
    KEY_STRIDES: tl.constexpr, VALUE_STRIDES: tl.constexpr, SCALE_STRIDES: tl.constexpr,
    HEAD: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr, QUANTIZED: tl.constexpr,
    PRECISION: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Attend from the rows of `q [rows, HEAD_BLOCK]` to the `TILE` tokens of one sequence from `tile` on.

    If `MASKED`, tokens from `stop` on do not exist, and `seen [rows, TILE]` are those that a row sees; else all are.
    `peak`, `total` `[rows]` and `mixed [rows, VALUE_BLOCK]` are the softmax so far, and are returned as they are after.
    `scale` makes scores of products, or if there is a `CAP`, the exponents of 2 for their hyperbolic tangents.
    """
    channels = tl.arange(0, HEAD_BLOCK)[None, :]
    value_channels = tl.arange(0, VALUE_BLOCK)[None, :]
    tokens = tl.arange(0, TILE)
    in_table = tokens < stop - tile if MASKED else tokens < TILE
    # compared once more: the first outcome, needed two tiles earlier, would be carried from tile to tile
    exists = tile + tokens < stop if MASKED else in_table
    if BLOCK_SIZE % TILE == 0:  # all in one block
        entries = tl.zeros_like(tokens)
        slots = tile % BLOCK_SIZE + tokens
    else:
        if TILE % BLOCK_SIZE != 0:
            tokens += tile % BLOCK_SIZE
        entries = tokens // BLOCK_SIZE
        slots = tokens % BLOCK_SIZE
    blocks = tl.load(table + tile // BLOCK_SIZE + entries, mask=in_table, other=0).to(tl.int64)
    # places within blocks first, the same for all tiles; keys that do not exist are not seen, whatever is read
    key_rows = key_cache + kv_head * KEY_STRIDES[2] + slots[:, None] * KEY_STRIDES[1] + channels
    key_mask = tl.broadcast_to(channels < HEAD, (TILE, HEAD_BLOCK))
    keys = tl.load(key_rows + (blocks * KEY_STRIDES[0])[:, None], mask=key_mask, other=0.0)
    scores = tl.dot(q, keys.to(q.dtype).T, input_precision=PRECISION)
    if QUANTIZED:
        scale_places = blocks * SCALE_STRIDES[0] + slots * SCALE_STRIDES[1] + kv_head
        scores *= tl.load(key_scale + scale_places, mask=exists, other=0.0)[None, :]
    if CAP > 0.0:
        scores = 1.0 - 2.0 / (tl.exp2(scores * scale) + 1.0)
        scale = CAP
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale)
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: no infinity minus infinity
    weights = tl.exp2(scores * scale - base[:, None])
    faded = tl.exp2(peak - base)
    total = total * faded + tl.sum(weights, axis=1)
    value_rows = value_cache + kv_head * VALUE_STRIDES[2] + slots[:, None] * VALUE_STRIDES[1] + value_channels
    value_mask = exists[:, None] & (value_channels < VALUE)
    values = tl.load(value_rows + (blocks * VALUE_STRIDES[0])[:, None], mask=value_mask, other=0.0)
    if QUANTIZED:
        weights *= tl.load(value_scale + scale_places, mask=exists, other=0.0)[None, :]
    mixed = tl.dot(weights.to(q.dtype), values.to(q.dtype), mixed * faded[:, None], input_precision=PRECISION)
    return new_peak, total, mixed


def tile_scale(scale: float, softcap: float | None) -> float:
    """Return the factor that tiles get for a factor on the scores: with a cap, e^2x is what makes tanh x."""
    return scale * LOG2_E.value if softcap is None else 2 * scale / softcap * LOG2_E.value


def reference_weights(scores: Tensor, seen: Tensor, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """Return the softmax of what is seen of `scores [..., num_kv_heads, group, queries, tokens]`, of nothing zeros."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        more = sinks.float().view(*scores.shape[-4:-2], 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, more], dim=-1)
    return scores.softmax(-1).nan_to_num(0.0)[..., : seen.shape[-1]]


def gather_context(cache: Tensor, scales: Tensor | None, block_tables: Tensor) -> Tensor:
    """Return what a cache holds, in float32: `[num_seqs, max_blocks * block_size, num_kv_heads, size]`."""
    found = cache[block_tables.long()].float()
    if scales is not None:
        found *= scales[block_tables.long()][..., None]
    return found.flatten(1, 2)


def tile_constants(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scale: Tensor | None,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> dict[str, Any]:
    """Return the constants both kernels are compiled for, strides included: most layers of a model share them."""
    block_size, num_kv_heads, value_size = value_cache.shape[1:]
    head_size = query.shape[2]
    return {
        "CAP": (softcap or 0.0) * LOG2_E.value,
        "SINKS": sinks is not None,
        "KEY_STRIDES": key_cache.stride()[:3],
        "VALUE_STRIDES": value_cache.stride()[:3],
        "SCALE_STRIDES": (0, 0) if key_scale is None else key_scale.stride()[:2],
        "GROUP": query.shape[1] // num_kv_heads,
        "HEAD": head_size,
        "HEAD_BLOCK": next_power_of_2(head_size),
        "VALUE": value_size,
        "VALUE_BLOCK": next_power_of_2(value_size),
        "BLOCK_SIZE": block_size,
        "WINDOW": sliding_window or 0,
        "QUANTIZED": key_scale is not None,
        # float32 in full, where tensor cores would cut it to 10 bits
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
