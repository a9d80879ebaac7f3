"""Attention to encoders' states in the paged cache, by every backend of this machine: SDPA is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from corellm.attention.backend import AttentionCall, CrossAttentionMetadata, LayerCache
from corellm.attention.cross_attention import CrossAttention, stand_in
from corellm.attention.registry import select_backend

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
    got = select_backend(CPU, dtype, name).cross_attend(
        AttentionCall(query.clone(), nothing, nothing, 0.3), cache, metadata
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
    got = select_backend(CPU, torch.float32, name).cross_attend(call, cache, metadata)
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
