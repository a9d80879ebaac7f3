"""Rotary positions of queries and keys, and the write of keys and values into the paged cache, in one pass.

Every query is read and written in place, every key and value read once and written to its slot: `2 * size * (heads +
2 * kv_heads)` elements a token, and cosines and sines once for each program of up to 2048 elements. Three FLOPs an
element: bound by memory. Arithmetic is in float32 with one rounding, to the query's or to the cache's type.

RoFormer: Su et al. 2021, arXiv 2104.09864; halves as GPT-NeoX pairs them. Sections of three positions: Qwen2-VL, Wang
et al. 2024, arXiv 2409.12191.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.cache_store import as_stored, largest_of, scale_of, store, store_reference
from corellm_kernels.gpu.launch import next_power_of_2

_TILE = 2048
"""Elements of a program: for each thread of four warps 16 bytes of half precision in either half of a head."""


@triton.jit
def _rotate(
    heads, in_heads, cos, sin, token, num_tokens,
    ROTARY: tl.constexpr, HALF_BLOCK: tl.constexpr, TEMPORAL: tl.constexpr, SPATIAL: tl.constexpr,
):  # fmt: skip
    """Return both halves of the heads that start at `heads`, `[heads, 1]`, rotated, in float32."""
    HALF: tl.constexpr = ROTARY // 2
    columns = tl.broadcast_to(tl.arange(0, HALF_BLOCK)[None, :], (in_heads.shape[0], HALF_BLOCK))
    inside = in_heads & (columns < HALF)
    angles = token * ROTARY + columns
    if TEMPORAL >= 0:
        section = tl.where(columns < TEMPORAL, 0, tl.where(columns < SPATIAL, 1, 2))
        angles += section.to(tl.int64) * num_tokens * ROTARY
    cos_first = tl.load(cos + angles, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + angles, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + angles + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + angles + HALF, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(heads + columns, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(heads + HALF + columns, mask=inside, other=0.0).to(tl.float32)
    return first * cos_first - second * sin_first, second * cos_second + first * sin_second


@triton.jit
def _rotate_in_place(
    token_heads, first_head, cos, sin, token, num_tokens,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, SIZE: tl.constexpr,
    ROTARY: tl.constexpr, HALF_BLOCK: tl.constexpr, TEMPORAL: tl.constexpr, SPATIAL: tl.constexpr,
):  # fmt: skip
    heads = first_head + tl.arange(0, HEADS_BLOCK)[:, None]
    place = token_heads + heads * SIZE
    first, second = _rotate(place, heads < HEADS, cos, sin, token, num_tokens, ROTARY, HALF_BLOCK, TEMPORAL, SPATIAL)
    columns = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (heads < HEADS) & (columns < ROTARY // 2)
    tl.store(place + columns, first, mask=inside)
    tl.store(place + ROTARY // 2 + columns, second, mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def _rotate_and_cache_kernel(
    query, key, value, cos, sin, key_cache, value_cache, key_scale, value_scale, slot_mapping,
    num_tokens, query_stride, key_stride, value_stride,
    key_block_stride, key_slot_stride, key_head_stride, value_block_stride, value_slot_stride, value_head_stride,
    scale_block_stride, scale_slot_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    ROTARY: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    TEMPORAL: tl.constexpr, SPATIAL: tl.constexpr, BLOCK_SIZE: tl.constexpr, QUANTIZED: tl.constexpr,
    HEADS_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr, QUERY_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    token = (program // GROUPS).to(tl.int64)
    group = program % GROUPS
    if group < QUERY_GROUPS:
        _rotate_in_place(
            query + token * query_stride, group * HEADS_BLOCK, cos, sin, token, num_tokens,
            HEADS, HEADS_BLOCK, SIZE, ROTARY, HALF_BLOCK, TEMPORAL, SPATIAL,
        )  # fmt: skip
    else:
        heads = (group - QUERY_GROUPS) * KV_BLOCK + tl.arange(0, KV_BLOCK)[:, None]
        in_heads = heads < KV_HEADS
        columns = tl.arange(0, HALF_BLOCK)[None, :]
        inside = columns < ROTARY // 2
        rest_columns = ROTARY + tl.arange(0, REST_BLOCK)[None, :]
        in_rest = rest_columns < SIZE
        value_columns = tl.arange(0, VALUE_BLOCK)[None, :]
        in_value = value_columns < VALUE_SIZE
        slot = tl.load(slot_mapping + token).to(tl.int64)
        source = value + token * value_stride + heads * VALUE_SIZE
        values = tl.load(source + value_columns, mask=in_heads & in_value, other=0.0).to(tl.float32)
        source = key + token * key_stride + heads * SIZE
        key_largest = tl.zeros([KV_BLOCK], tl.float32)
        if ROTARY < SIZE:
            rest = tl.load(source + rest_columns, mask=in_heads & in_rest, other=0.0).to(tl.float32)
            key_largest = largest_of(rest)
        if ROTARY > 0:
            first, second = _rotate(
                source, in_heads, cos, sin, token, num_tokens, ROTARY, HALF_BLOCK, TEMPORAL, SPATIAL
            )
            key_largest = tl.maximum(key_largest, tl.maximum(largest_of(first), largest_of(second)))

        # a branch here would keep every load back until the slot has come
        written = in_heads & (slot >= 0)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        by_key = scale_of(key_largest, key_cache)
        by_value = scale_of(largest_of(values), value_cache)
        if QUANTIZED:
            place = block * scale_block_stride + offset * scale_slot_stride + heads
            tl.store(key_scale + place, by_key[:, None], mask=written)
            tl.store(value_scale + place, by_value[:, None], mask=written)
        place = key_cache + block * key_block_stride + offset * key_slot_stride + heads * key_head_stride
        if ROTARY > 0:
            store(place + columns, first, by_key, written & inside)
            store(place + ROTARY // 2 + columns, second, by_key, written & inside)
        if ROTARY < SIZE:
            store(place + rest_columns, rest, by_key, written & in_rest)
        place = value_cache + block * value_block_stride + offset * value_slot_stride + heads * value_head_stride
        store(place + value_columns, values, by_value, written & in_value)


def rotate_and_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    sections: tuple[int, int, int] | None = None,
) -> None:
    """Rotate queries in place; write rotated keys, and values, to their slots of the cache.

    Args:
        query: `[n, heads, size]`, written to. It and the next two may be views of one projection: of any stride from
            token to token, contiguous within one.
        key: `[n, kv_heads, size]`.
        value: `[n, kv_heads, value_size]`.
        cos, sin: `[n, rotary_size]`, any floating type; `rotary_size` is at most `size`, and what lies behind it is
            not rotated. None if nothing is.
        key_cache, value_cache: `[num_blocks, block_size, kv_heads, size or value_size]`, heads contiguous; of a
            floating type, or both int8 or both float8 e4m3.
        slot_mapping: `[n]` int64, `block * block_size + offset`; a token with a negative one is not written.
        key_scale, value_scale: `[num_blocks, block_size, kv_heads]` float32 of the same strides, written if the cache
            is quantized.
        sections: of M-RoPE, where `cos` and `sin` are `[3, n, rotary_size]`, for positions in time, height and width:
            how many pairs of each head each of the three rotates, in this order; they sum up to `rotary_size // 2`.
    """
    num_tokens, heads, size = query.shape
    _, kv_heads, value_size = value.shape
    if not num_tokens:
        return
    rotary = 0
    if cos is not None and sin is not None:
        cos, sin, rotary = cos.contiguous(), sin.contiguous(), cos.shape[-1]
    half_block, rest_block = next_power_of_2(max(1, rotary // 2)), next_power_of_2(max(1, size - rotary))
    value_block = next_power_of_2(value_size)
    heads_block = _heads_of_a_program(heads, 2 * half_block)
    kv_block = _heads_of_a_program(kv_heads, max(2 * half_block, rest_block, value_block))
    query_groups = triton.cdiv(heads, heads_block) if rotary else 0
    groups = query_groups + triton.cdiv(kv_heads, kv_block)
    temporal, height, _ = sections or (-1, 0, 0)
    _rotate_and_cache_kernel[(num_tokens * groups,)](
        query, key, value, query if cos is None else cos, query if sin is None else sin,
        as_stored(key_cache), as_stored(value_cache),
        slot_mapping if key_scale is None else key_scale, slot_mapping if value_scale is None else value_scale,
        slot_mapping, num_tokens, *(x.view(num_tokens, -1).stride(0) for x in (query, key, value)),
        *key_cache.stride()[:3], *value_cache.stride()[:3], *((0, 0) if key_scale is None else key_scale.stride()[:2]),
        HEADS=heads, KV_HEADS=kv_heads, SIZE=size, VALUE_SIZE=value_size,
        ROTARY=rotary, HALF_BLOCK=half_block, REST_BLOCK=rest_block, VALUE_BLOCK=value_block,
        TEMPORAL=temporal, SPATIAL=temporal + height, BLOCK_SIZE=key_cache.shape[1], QUANTIZED=key_scale is not None,
        HEADS_BLOCK=heads_block, KV_BLOCK=kv_block, QUERY_GROUPS=query_groups, GROUPS=groups, num_warps=4,
    )  # fmt: skip


def write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    """Write keys and values to their slots of the cache: as `rotate_and_cache` for models without rotary positions.

    These come as a model made them, of any strides.
    """
    key, value = (x.flatten(1).view(x.shape) for x in (key, value))
    rotate_and_cache(
        key, key, value, None, None, key_cache, value_cache, slot_mapping, key_scale=key_scale, value_scale=value_scale
    )


def rotate_and_cache_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    sections: tuple[int, int, int] | None = None,
) -> None:
    """Do what `rotate_and_cache` does, in plain torch."""
    if cos is not None and sin is not None:
        if sections is not None:
            cos, sin = (
                torch.cat(
                    [plane[i % 3] for i, plane in enumerate(torch.split(x, [*sections, *sections], dim=-1))], dim=-1
                )
                for x in (cos, sin)
            )
        query.copy_(_rotated(query, cos, sin))
        key = _rotated(key, cos, sin)
    write_cache_reference(
        key, value, key_cache, value_cache, slot_mapping, key_scale=key_scale, value_scale=value_scale
    )


def write_cache_reference(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    """Do what `write_cache` does, in plain torch."""
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    place = slots // key_cache.shape[1], slots % key_cache.shape[1]
    store_reference(key[written], key_cache, key_scale, place)
    store_reference(value[written], value_cache, value_scale, place)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x`, `[n, heads, size]`, rotated by `[n, rotary_size]`, in float32."""
    wide = x.float()
    first, second = wide[..., : cos.shape[-1]].chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    rotated = wide[..., : cos.shape[-1]] * cos.float()[:, None] + turned * sin.float()[:, None]
    return torch.cat((rotated, wide[..., cos.shape[-1] :]), dim=-1)


def _heads_of_a_program(heads: int, block: int) -> int:
    """Return the number of heads per program, padded to `block`: a power of two."""
    return min(next_power_of_2(heads), max(1, _TILE // block))
