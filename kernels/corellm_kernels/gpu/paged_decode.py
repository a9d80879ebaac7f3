"""Attention of one query token per sequence over a paged cache, split over the context.

Each sequence's context is divided among `num_splits` programs per key-value head (flash decoding: Dao, Haziza, Massa
and Sizov 2023), so that few long sequences fill a GPU as well as many short ones; a second kernel joins the parts by
their log-sum-exp. The query heads that share a key-value head are the rows of one tile: keys and values are read once
for all of them.

Bytes: every key and value of the context once, `2 * context * num_kv_heads * head_size` elements a sequence; all else
is small. FLOPs: `4 * context * num_heads * head_size`, i.e. `num_heads / num_kv_heads` FLOPs a byte in half precision:
bound by memory for any ratio of heads in use.

How many splits there are depends on the number of sequences alone, never on their lengths, and a sequence's lengths
are read from memory: a captured launch serves whatever lengths come.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2, num_multiprocessors
from corellm_kernels.gpu.paged_tiles import (
    begin_softmax,
    fold_tile,
    gather_context,
    reference_weights,
    tile_constants,
    tile_scale,
)

MAX_SPLITS = 64
_MIN_ROWS = 16
"""Rows of the smallest tile that tensor cores multiply."""


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["block_tables", "seq_lens", "sinks"])
def _paged_decode_kernel(
    query, key_cache, value_cache, key_scale, value_scale, block_tables, seq_lens, sinks, parts, part_lse, out,
    query_stride, query_head_stride, table_stride, out_stride, out_head_stride, scale, num_heads,
    KEY_STRIDES: tl.constexpr, VALUE_STRIDES: tl.constexpr, SCALE_STRIDES: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    IS_SPLIT: tl.constexpr, WINDOW: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
    CAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    sequence, kv_head, split, num_splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    seq_len = tl.load(seq_lens + sequence).to(tl.int32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(seq_len - WINDOW, 0)
    # whole tiles to each split; `first` lies somewhere in the first tile
    num_tiles = tl.cdiv(seq_len, TILE) - first // TILE
    per_split = tl.cdiv(num_tiles, num_splits)
    start = (first // TILE + split * per_split) * TILE
    stop = tl.minimum(start + per_split * TILE, seq_len)

    rows = tl.arange(0, ROWS)
    heads = kv_head * GROUP + rows
    in_group = rows < GROUP
    channels = tl.arange(0, HEAD_BLOCK)
    value_channels = tl.arange(0, VALUE_BLOCK)
    q = tl.load(
        query + sequence.to(tl.int64) * query_stride + heads[:, None] * query_head_stride + channels[None, :],
        mask=in_group[:, None] & (channels < HEAD)[None, :],
        other=0.0,
    )
    peak, total = begin_softmax(sinks, heads, in_group, ROWS, SINKS)
    if SINKS and IS_SPLIT:  # it counts once
        peak = tl.where(split == 0, peak, float("-inf"))
        total = tl.where(split == 0, total, 0.0)
    mixed = tl.zeros([ROWS, VALUE_BLOCK], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_stride
    for tile in tl.range(start, stop, TILE):
        positions = tile + tl.arange(0, TILE)
        seen = ((positions < stop) & (positions >= first))[None, :]
        peak, total, mixed = fold_tile(
            q, table, tile, stop, seen, peak, total, mixed,
            key_cache, value_cache, key_scale, value_scale, kv_head, scale,
            KEY_STRIDES, VALUE_STRIDES, SCALE_STRIDES,
            HEAD, HEAD_BLOCK, VALUE, VALUE_BLOCK, BLOCK_SIZE, TILE, True, QUANTIZED, PRECISION, CAP,
        )  # fmt: skip

    result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    writes = in_group[:, None] & (value_channels < VALUE)[None, :]
    if not IS_SPLIT:
        place = out + sequence.to(tl.int64) * out_stride + heads[:, None] * out_head_stride + value_channels[None, :]
        tl.store(place, result, mask=writes)
    else:
        part = (sequence.to(tl.int64) * num_heads + heads) * num_splits + split
        tl.store(parts + part[:, None] * VALUE + value_channels[None, :], result, mask=writes)
        lse = tl.where(total > 0.0, peak + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))
        tl.store(part_lse + part, lse, mask=in_group)


@triton.jit
def _join_splits_kernel(
    parts, part_lse, out, out_stride, out_head_stride, num_heads,
    VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    splits = tl.arange(0, NUM_SPLITS)
    channels = tl.arange(0, VALUE_BLOCK)
    part = (sequence.to(tl.int64) * num_heads + head) * NUM_SPLITS + splits
    lse = tl.load(part_lse + part)
    peak = tl.max(lse, axis=0)
    weights = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak))
    values = tl.load(
        parts + part[:, None] * VALUE + channels[None, :],
        mask=(weights > 0.0)[:, None] & (channels < VALUE)[None, :],
        other=0.0,
    )
    total = tl.sum(weights, axis=0)
    joined = tl.sum(values * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    place = out + sequence.to(tl.int64) * out_stride + head * out_head_stride + channels
    tl.store(place, joined, mask=channels < VALUE)


def paged_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attend with one query token per sequence, the last of its context.

    Args:
        query: `[num_seqs, num_heads, head_size]`, heads contiguous.
        key_cache, value_cache: `[num_blocks, block_size, num_kv_heads, head_size]`, of the query's type or quantized;
            the value's head size may be another.
        block_tables: `[num_seqs, max_blocks]`, integers.
        seq_lens: `[num_seqs]`, integers: tokens in the cache; a sequence of none gets zeros.
        out: `[num_seqs, num_heads, value_size]`, written to.
        scale: factor on the scores, above 0.
        sliding_window: the query sees at most this many tokens, itself included; None for all.
        key_scale, value_scale: `[num_blocks, block_size, num_kv_heads]` float32, of a quantized cache.
        softcap: scores, scaled, become `softcap * tanh(score / softcap)`; None to leave them.
        sinks: `[num_heads]`, contiguous: one more score in each head's softmax, of a value of zero.
    """
    num_seqs, num_heads, head_size = query.shape
    if not num_seqs:
        return
    block_size, num_kv_heads, value_size = value_cache.shape[1:]
    splits = choose_num_splits(num_seqs * num_kv_heads, block_tables.shape[1] * block_size, query.device)
    tile, warps, stages = _shape_of_tiles(max(head_size, value_size), query.element_size())
    parts, part_lse = out, seq_lens
    if splits > 1:
        parts = torch.empty(num_seqs, num_heads, splits, value_size, dtype=torch.float32, device=query.device)
        part_lse = torch.empty(num_seqs, num_heads, splits, dtype=torch.float32, device=query.device)
    scales = key_scale if key_scale is not None else seq_lens
    _paged_decode_kernel[(num_seqs, num_kv_heads, splits)](
        query, key_cache, value_cache, scales, scales if value_scale is None else value_scale, block_tables, seq_lens,
        seq_lens if sinks is None else sinks, parts, part_lse, out, query.stride(0), query.stride(1),
        block_tables.stride(0), out.stride(0), out.stride(1), tile_scale(scale, softcap), num_heads,
        **tile_constants(query, key_cache, value_cache, key_scale, sliding_window, softcap, sinks),
        ROWS=max(_MIN_ROWS, next_power_of_2(num_heads // num_kv_heads)), TILE=tile, IS_SPLIT=splits > 1,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _join_splits_kernel[(num_seqs, num_heads)](
            parts, part_lse, out, out.stride(0), out.stride(1), num_heads,
            VALUE=value_size, VALUE_BLOCK=next_power_of_2(value_size), NUM_SPLITS=splits, num_warps=4,
        )  # fmt: skip


def paged_decode_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Do what `paged_decode` does in float32 torch, without reading values on the host."""
    keys, values = (
        gather_context(cache, scales, block_tables)
        for cache, scales in ((key_cache, key_scale), (value_cache, value_scale))
    )  # [num_seqs, padded, num_kv_heads, head_size]
    positions = torch.arange(keys.shape[1], device=query.device)
    seen = positions < seq_lens[:, None]
    if sliding_window is not None:
        seen &= positions >= seq_lens[:, None] - sliding_window
    keys, values = (x.masked_fill(~seen[:, :, None, None], 0) for x in (keys, values))
    grouped = query.float().unflatten(1, (keys.shape[2], -1))  # [num_seqs, num_kv_heads, group, head_size]
    scores = torch.einsum("skgd,stkd->skgt", grouped, keys)[:, :, :, None] * scale
    weights = reference_weights(scores, seen[:, None, None, None], softcap, sinks)[:, :, :, 0]
    out.copy_(torch.einsum("skgt,stkd->skgd", weights, values).flatten(1, 2))


def choose_num_splits(num_programs: int, max_context: int, device: torch.device) -> int:
    """Return the number of splits of a context: a power of two that gives each multiprocessor three programs.

    Args:
        num_programs: those that there are without splitting.
        max_context: no sequence is longer; parts of under 128 tokens are not worth a program.
    """
    wanted = min(3 * num_multiprocessors(device) // num_programs, max_context // 128, MAX_SPLITS)
    return next_power_of_2(wanted + 1) // 2 if wanted > 1 else 1


def _shape_of_tiles(head_size: int, element_size: int) -> tuple[int, int, int]:
    """Return tokens per tile, warps and stages: two tiles of about 32 KB of keys and values in flight."""
    bytes_per_token = next_power_of_2(head_size) * element_size
    tile = max(16, min(128, 16384 // bytes_per_token))
    return tile, 4, 5 if bytes_per_token <= 1024 else 2
