"""Attention of chunks of prompts over a paged cache, all sequences of a batch in one launch.

The queries of a sequence are its last tokens; each sees those up to itself, or as many of the first as is said. The
chunk's own keys and values are in the cache already, beside those of earlier chunks and of shared prefixes. A program
takes a tile of queries times the heads that share a key-value head, and passes over the context once (FlashAttention-2:
Dao 2023, arXiv 2307.08691). Which sequence a program works for it finds by bisection: no list of tiles is made on the
host.

FLOPs: `4 * num_heads * head_size` for each pair of a query and a token it sees. Bytes: each tile of queries reads its
context, `2 * context * head_size` elements per key-value head; with 128 rows a tile that is 64 FLOPs a byte from the
L2 cache and far more from memory: bound by matrix products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2, shared_memory
from corellm_kernels.gpu.paged_tiles import (
    begin_softmax,
    fold_tile,
    gather_context,
    reference_weights,
    tile_constants,
    tile_scale,
)


@triton.jit
def _sequence_of(number, query_starts, num_seqs, QUERIES: tl.constexpr):
    """Return the sequence that tile `number` belongs to, by bisection.

    Tiles of all sequences lie one after another: sequence s has those from (starts[s] - starts[0]) // QUERIES + s on,
    and at most one more than it needs.
    """
    begins = tl.load(query_starts)
    low, high = 0, num_seqs
    while low < high:
        middle = (low + high) // 2
        if (tl.load(query_starts + middle) - begins) // QUERIES + middle <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(
    do_not_specialize=["num_seqs", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "seq_lens", "query_starts", "visible_lens", "span_starts", "sinks"],
)
def _paged_prefill_kernel(
    query, key_cache, value_cache, key_scale, value_scale, block_tables, seq_lens, query_starts, visible_lens,
    span_starts, sinks, out, num_seqs, query_stride, query_head_stride, table_stride, out_stride, out_head_stride,
    scale,
    KEY_STRIDES: tl.constexpr, VALUE_STRIDES: tl.constexpr, SCALE_STRIDES: tl.constexpr,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, QUERIES: tl.constexpr, HEAD: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, VALUE: tl.constexpr, VALUE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
    CAP: tl.constexpr, SINKS: tl.constexpr, VISIBLE: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    number = tl.num_programs(0) - 1 - tl.program_id(0)  # the last ones have the longest way: they begin
    kv_head = tl.program_id(1)
    sequence = _sequence_of(number, query_starts, num_seqs, QUERIES)
    query_start = tl.load(query_starts + sequence)
    query_len = tl.load(query_starts + sequence + 1) - query_start
    first_query = (number - (query_start - tl.load(query_starts)) // QUERIES - sequence) * QUERIES
    if first_query >= query_len:
        return
    context = tl.load(seq_lens + sequence).to(tl.int32) - query_len  # tokens before the chunk

    rows = tl.arange(0, QUERIES * GROUP_BLOCK)
    queries = first_query + rows // GROUP_BLOCK
    in_group = rows % GROUP_BLOCK
    heads = kv_head * GROUP + in_group
    exists = (queries < query_len) & (in_group < GROUP)
    tokens = (query_start + queries).to(tl.int64)
    channels = tl.arange(0, HEAD_BLOCK)
    value_channels = tl.arange(0, VALUE_BLOCK)
    q = tl.load(
        query + tokens[:, None] * query_stride + heads[:, None] * query_head_stride + channels[None, :],
        mask=exists[:, None] & (channels < HEAD)[None, :],
        other=0.0,
    )
    own = context + queries  # each row's own position, and the last that it sees
    last = own
    peak, total = begin_softmax(sinks, heads, exists, QUERIES * GROUP_BLOCK, SINKS)
    mixed = tl.zeros([QUERIES * GROUP_BLOCK, VALUE_BLOCK], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_stride

    # tokens [begin, stop) are seen by some row; [begin, whole) by every row, which only holds without a window
    stop = context + tl.minimum(first_query + QUERIES, query_len)
    if VISIBLE:
        last = tl.minimum(tl.load(visible_lens + tokens, mask=exists, other=0), context + query_len) - 1
        stop = tl.max(last, axis=0) + 1
    begin = 0
    whole = (context + first_query + 1) // TILE * TILE
    if WINDOW > 0:
        first = own - WINDOW + 1  # that each row sees
        if SPANS:
            first = tl.minimum(tl.load(span_starts + tokens, mask=exists, other=0x7FFFFFFF), first)
        begin = tl.maximum(tl.min(first, axis=0), 0) // TILE * TILE
        whole = begin
    for tile in tl.range(begin, whole, TILE):
        peak, total, mixed = fold_tile(
            q, table, tile, stop, None, peak, total, mixed,
            key_cache, value_cache, key_scale, value_scale, kv_head, scale,
            KEY_STRIDES, VALUE_STRIDES, SCALE_STRIDES,
            HEAD, HEAD_BLOCK, VALUE, VALUE_BLOCK, BLOCK_SIZE, TILE, False, QUANTIZED, PRECISION, CAP,
        )  # fmt: skip
    for tile in tl.range(whole, stop, TILE):
        positions = tile + tl.arange(0, TILE)
        seen = positions[None, :] <= last[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= first[:, None])
        peak, total, mixed = fold_tile(
            q, table, tile, stop, seen, peak, total, mixed,
            key_cache, value_cache, key_scale, value_scale, kv_head, scale,
            KEY_STRIDES, VALUE_STRIDES, SCALE_STRIDES,
            HEAD, HEAD_BLOCK, VALUE, VALUE_BLOCK, BLOCK_SIZE, TILE, True, QUANTIZED, PRECISION, CAP,
        )  # fmt: skip

    tl.store(
        out + tokens[:, None] * out_stride + heads[:, None] * out_head_stride + value_channels[None, :],
        mixed / tl.where(total == 0.0, 1.0, total)[:, None],
        mask=exists[:, None] & (value_channels < VALUE)[None, :],
    )


def paged_prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    visible_lens: Tensor | None = None,
    span_starts: Tensor | None = None,
) -> None:
    """Attend with any number of query tokens per sequence, the last of its context.

    Args:
        query: `[num_tokens, num_heads, head_size]`, heads contiguous.
        key_cache, value_cache: `[num_blocks, block_size, num_kv_heads, head_size]`, of the query's type or quantized;
            the value's head size may be another.
        block_tables: `[num_seqs, max_blocks]`, integers.
        seq_lens: `[num_seqs]`, integers: tokens in the cache, those of the chunk included.
        query_starts: `[num_seqs + 1]`, int32: where each sequence's query tokens begin; the last is where they end,
            tokens of `query` before the first and behind the last are let alone.
        out: `[num_tokens, num_heads, value_size]`, written to.
        scale: factor on the scores, above 0.
        sliding_window: each query sees at most this many tokens, itself included; None for all.
        key_scale, value_scale: `[num_blocks, block_size, num_kv_heads]` float32, of a quantized cache.
        softcap: scores, scaled, become `softcap * tanh(score / softcap)`; None to leave them.
        sinks: `[num_heads]`, contiguous: one more score in each head's softmax, of a value of zero.
        visible_lens: `[num_tokens]`, integers, contiguous: how many of its sequence's first tokens each query sees, at
            least those up to itself, which it sees without; a window cuts them from the front.
        span_starts: `[num_tokens]`, integers, contiguous: a token of its sequence up to each query, from which on the
            window cuts nothing; without, it cuts all.
    """
    num_seqs = len(seq_lens)
    num_tokens, num_heads, head_size = query.shape
    if not num_tokens or not num_seqs:
        return
    num_kv_heads, value_size = value_cache.shape[2:]
    group_block = next_power_of_2(num_heads // num_kv_heads)
    size = max(head_size, value_size)
    rows, tile, warps, stages = _shape_of_tiles(size, query.element_size(), query.device)
    queries = max(1, rows // group_block)
    scales = (seq_lens, seq_lens) if key_scale is None else (key_scale, value_scale)
    _paged_prefill_kernel[(num_tokens // queries + num_seqs, num_kv_heads)](
        query, key_cache, value_cache, *scales, block_tables, seq_lens, query_starts,
        *(seq_lens if given is None else given for given in (visible_lens, span_starts, sinks)), out, num_seqs,
        query.stride(0), query.stride(1), block_tables.stride(0), out.stride(0), out.stride(1),
        tile_scale(scale, softcap),
        **tile_constants(query, key_cache, value_cache, key_scale, sliding_window, softcap, sinks),
        GROUP_BLOCK=group_block, QUERIES=queries, TILE=tile, VISIBLE=visible_lens is not None,
        SPANS=span_starts is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def paged_prefill_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    out: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    visible_lens: Tensor | None = None,
    span_starts: Tensor | None = None,
) -> None:
    """Do what `paged_prefill` does in float32 torch, one sequence after another."""
    starts = query_starts.tolist()
    for i, length in enumerate(seq_lens.tolist()):
        part = slice(starts[i], starts[i + 1])
        keys, values = (
            gather_context(cache, scales, block_tables[i : i + 1])[0, :length].transpose(0, 1)
            for cache, scales in ((key_cache, key_scale), (value_cache, value_scale))
        )  # [num_kv_heads, length, head_size]
        chunk = query[part].float().transpose(0, 1).unflatten(0, (len(keys), -1))
        positions = torch.arange(length, device=query.device)
        own = positions[length - (starts[i + 1] - starts[i]) :, None]
        seen = positions <= own if visible_lens is None else positions < visible_lens[part, None]
        if sliding_window is not None:
            within = positions > own - sliding_window
            seen &= within if span_starts is None else within | (positions >= span_starts[part, None])
        scores = torch.einsum("kgqd,ktd->kgqt", chunk, keys) * scale
        weights = reference_weights(scores, seen, softcap, sinks)
        out[part] = torch.einsum("kgqt,ktd->kgqd", weights, values).flatten(0, 1).transpose(0, 1).to(out.dtype)


def _shape_of_tiles(head_size: int, element_size: int, device: torch.device) -> tuple[int, int, int, int]:
    """Return rows, tokens per tile, warps and stages: of five (see `paged_tiles`), or three where they do not fit."""
    bytes_per_token = next_power_of_2(head_size) * element_size
    if bytes_per_token <= 256:
        return 128, 64, 8, 5
    if bytes_per_token <= 512:
        return 64, 32, 8, 5 if shared_memory(device) >= 160 << 10 else 3
    return 32, 16, 4, 2
