"""Attention to encoders' states in the paged cache, by every backend of this machine: SDPA is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionCall, CrossAttentionMetadata, LayerCache
from corellm.attention.registry import select_backend
from corellm_encoder_decoder.cross_attention import CrossAttention, cross_attend, stand_in

CPU = torch.device("cpu")
HEADS, SIZE, BLOCKS = 4, 16, 40


def make_states(
    block_size: int, kv_heads: int, dtype: torch.dtype
) -> tuple[CrossAttentionMetadata, LayerCache, list[Any]]:
    """Three sequences with one, several and one query, their states in scattered blocks among values of NaN."""
    generator = torch.Generator().manual_seed(0)
    query_lens, num_states = [1, 5, 1], [2 * block_size, 3 * block_size - 1, 1]
    order = (torch.randperm(BLOCKS - 1, generator=generator) + 1).tolist()
    tables = torch.zeros(3, 3, dtype=torch.int64)
    cache = LayerCache(*(torch.full((BLOCKS, block_size, kv_heads, SIZE), torch.nan, dtype=dtype) for _ in range(2)))
    kept = []
    for i, count in enumerate(num_states):
        blocks = [order.pop() for _ in range(-(-count // block_size))]
        tables[i, : len(blocks)] = torch.tensor(blocks)
        slots = (torch.tensor(blocks)[:, None] * block_size + torch.arange(block_size)).flatten()[:count]
        key, value = (torch.randn(count, kv_heads, SIZE, generator=generator).to(dtype) for _ in range(2))
        cache.write(key, value, slots)
        kept.append((key, value, slots))
    starts = torch.tensor([0, 1, 6, 7], dtype=torch.int32)
    return CrossAttentionMetadata(query_lens, starts, num_states, torch.tensor(num_states), tables), cache, kept


def by_sdpa(query: Tensor, metadata: CrossAttentionMetadata, kept: list[Any], scale: float) -> Tensor:
    """Each sequence's queries over all of its states."""
    parts = []
    for queries, (key, value, _) in zip(query.split(metadata.query_lens), kept, strict=True):
        q, k, v = (x.transpose(0, 1)[None].float() for x in (queries, key, value))
        parts.append(F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("name", ["reference", "cpu", "compiled"])
def test_every_query_sees_all_states(name: str, block_size: int, kv_heads: int, dtype: torch.dtype) -> None:
    """And nothing behind them, not even where blocks hold NaN; the cache is not written to."""
    metadata, cache, kept = make_states(block_size, kv_heads, dtype)
    before = cache.key.clone()
    query = torch.randn(7, HEADS, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = by_sdpa(query, metadata, kept, 0.3)
    nothing = query.new_empty(0, 0, 0)
    got = cross_attend(
        select_backend(CPU, dtype, name), AttentionCall(query.clone(), nothing, nothing, 0.3), cache, metadata
    )
    torch.testing.assert_close(got.float(), wanted, atol=1e-5 if dtype == torch.float32 else 3e-2, rtol=1e-2)
    assert torch.equal(cache.key.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("name", ["reference", "cpu", "compiled"])
def test_capped_scores(name: str) -> None:
    """Scores are capped as the call says."""
    metadata, cache, kept = make_states(8, HEADS, torch.float32)
    query = torch.randn(7, HEADS, SIZE, generator=torch.Generator().manual_seed(1))
    parts = []
    for queries, (key, value, _) in zip(query.split(metadata.query_lens), kept, strict=True):
        scores = torch.einsum("qhd,khd->hqk", queries, key) * 0.5
        parts.append(torch.einsum("hqk,khd->qhd", (2 * torch.tanh(scores / 2)).softmax(-1), value))
    nothing = query.new_empty(0, 0, 0)
    call = AttentionCall(query.clone(), nothing, nothing, 0.5, softcap=2.0)
    got = cross_attend(select_backend(CPU, torch.float32, name), call, cache, metadata)
    torch.testing.assert_close(got, torch.cat(parts), atol=1e-5, rtol=1e-4)


def test_states_are_written_where_they_are_read() -> None:
    """What a step writes at its slots is what it attends to."""
    metadata, cache, kept = make_states(8, HEADS, torch.float32)
    empty = LayerCache(torch.zeros_like(cache.key), torch.zeros_like(cache.value))
    slots = torch.cat([slots for *_, slots in kept])
    states = CrossAttention(select_backend(CPU, torch.float32), {5: empty}, metadata, slots, stand_in(CPU))
    states.write(5, torch.cat([key for key, *_ in kept]), torch.cat([value for _, value, _ in kept]))
    query = torch.randn(7, HEADS, SIZE, generator=torch.Generator().manual_seed(1))
    got = states.attend(5, query.clone(), 0.25, None)
    torch.testing.assert_close(got, by_sdpa(query, metadata, kept, 0.25), atol=1e-5, rtol=1e-4)


RANGES = ([(0, 3)], [(2, 9), (0, 1), (5, 20), (9, 10), (0, 7)], [(0, 1)])
"""Of each query, by sequence: from the first state up to the second; the last sequence has one state."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("name", ["reference", "cpu", "compiled"])
def test_each_query_sees_its_range(name: str, kv_heads: int, dtype: torch.dtype) -> None:
    """And nothing before or behind it; each alone by SDPA is the oracle. A sequence without states gets zeros."""
    metadata, cache, kept = make_states(8, kv_heads, dtype)
    query = torch.randn(9, HEADS, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    ranges = torch.tensor([pair for of_sequence in RANGES for pair in of_sequence] + [(0, 0)] * 2, dtype=torch.int32)
    metadata = CrossAttentionMetadata(
        [*metadata.query_lens, 2],
        torch.tensor([0, 1, 6, 7, 9], dtype=torch.int32),
        [*metadata.num_states, 0],
        torch.tensor([*metadata.num_states, 0]),
        torch.cat([metadata.block_tables, torch.zeros(1, 3, dtype=torch.int64)]),
        ranges.T,
    )
    wanted = []
    for (key, value, _), of_sequence in zip(kept, RANGES, strict=True):
        for start, end in of_sequence:
            one = query[len(wanted), None]
            q, k, v = (x.transpose(0, 1)[None].float() for x in (one, key[start:end], value[start:end]))
            wanted.append(F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)[0].transpose(0, 1))
    nothing = query.new_empty(0, 0, 0)
    got = cross_attend(
        select_backend(CPU, dtype, name), AttentionCall(query.clone(), nothing, nothing, 0.3), cache, metadata
    ).float()
    tolerance = {"atol": 1e-5 if dtype == torch.float32 else 3e-2, "rtol": 1e-2}
    torch.testing.assert_close(got[:7], torch.cat(wanted), **tolerance)
    assert not got[7:].any()


@pytest.mark.parametrize("long", [False, True])
def test_compiled_ranges_do_not_depend_on_the_chunk(long: bool) -> None:
    """Bit for bit, in a prompt that is computed whole and one that is computed in parts, of few or many states."""
    count, length = (300, 150) if long else (20, 30)
    generator = torch.Generator().manual_seed(0)
    cache = LayerCache(*(torch.randn(BLOCKS, 8, 2, SIZE, generator=generator) for _ in range(2)))
    query = torch.randn(length, HEADS, SIZE, generator=generator)
    starts = torch.randint(0, count - 1, (length,), generator=generator)
    ends = starts + 1 + torch.randint(0, count, (length,), generator=generator)
    ranges = torch.stack([starts, ends.clamp(max=count)]).int()
    tables = torch.arange(1, -(-count // 8) + 1)[None]
    backend, nothing = select_backend(CPU, torch.float32, "compiled"), query.new_empty(0, 0, 0)

    def attended(first: int, last: int) -> Tensor:
        lens = torch.tensor([0, last - first], dtype=torch.int32)
        metadata = CrossAttentionMetadata(
            [last - first], lens, [count], torch.tensor([count]), tables, ranges[:, first:last]
        )
        call = AttentionCall(query[first:last].clone(), nothing, nothing, 0.3)
        return cross_attend(backend, call, cache, metadata)

    whole = attended(0, length)
    assert torch.equal(whole, torch.cat([attended(i, min(i + 7, length)) for i in range(0, length, 7)]))
    assert torch.equal(whole, torch.cat([attended(i, i + 1) for i in range(length)]))
