"""Paged attention gives what its torch twin gives, and the twin what `scaled_dot_product_attention` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corellm.attention.reference import causal_mask
from corellm_kernels.gpu import paged_decode as decode_module
from corellm_kernels.gpu.paged_decode import paged_decode, paged_decode_reference
from corellm_kernels.gpu.paged_prefill import paged_prefill, paged_prefill_reference
from tests.attention.test_backends import UNCUT, plain_attention, visible_lens
from tests.kernels.comparing import DEVICE, DTYPES, assert_same


@dataclass(frozen=True)
class Case:
    """A batch of sequences over scattered blocks."""

    seq_lens: tuple[int, ...]
    group: int = 1
    kv_heads: int = 2
    head_size: int = 64
    value_size: int | None = None
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """What both kernels are asked for beside the batch."""
        generator = torch.Generator().manual_seed(self.seed + 100)
        sinks = torch.randn(self.kv_heads * self.group, generator=generator).mul(2).to(DEVICE)
        given = sinks if self.has_sinks else None
        return {"scale": 0.3, "sliding_window": self.window, "softcap": self.softcap, "sinks": given}

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Query, key cache, value cache, block tables, lengths. What belongs to no sequence is NaN."""
        generator = torch.Generator().manual_seed(self.seed)
        needed = [-(-n // self.block_size) for n in self.seq_lens]
        width = max([1, *needed])
        blocks = torch.randperm(sum(needed), generator=generator) + 1
        tables = torch.zeros(len(needed), width, dtype=torch.int64)
        keys, values = (
            torch.full((sum(needed) + 1, self.block_size, self.kv_heads, size), torch.nan)
            for size in (self.head_size, self.value_size or self.head_size)
        )
        used = 0
        for i, (length, count) in enumerate(zip(self.seq_lens, needed, strict=True)):
            tables[i, :count] = blocks[used : used + count]
            used += count
            for cache in (keys, values):
                filled = torch.full((count * self.block_size, *cache.shape[2:]), torch.nan)
                filled[:length] = torch.randn((length, *cache.shape[2:]), generator=generator)
                cache[tables[i, :count]] = filled.view(count, *cache.shape[1:])
        query = torch.randn(len(needed), self.kv_heads * self.group, self.head_size, generator=generator)
        made = (
            query.to(dtype),
            keys.to(dtype),
            values.to(dtype),
            tables,
            torch.tensor(self.seq_lens, dtype=torch.int32),
        )
        return tuple(x.to(DEVICE) for x in made)  # type: ignore[return-value]


CASES = st.builds(
    Case,
    seq_lens=st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 33, 64, 100]), min_size=1, max_size=3).map(tuple),
    group=st.sampled_from([1, 3, 4]),
    kv_heads=st.sampled_from([1, 2]),
    head_size=st.sampled_from([64, 80, 96, 128]),
    block_size=st.sampled_from([16, 32, 256]),
    window=st.none() | st.sampled_from([1, 20]),
    softcap=st.none() | st.just(2.0),
    has_sinks=st.booleans(),
    seed=st.integers(0, 9),
)


KINDS = st.sampled_from([None, "spans", "uncut", "chance"])
"""Kinds of `visible_lens`, which say how many tokens each query sees; None for no such argument."""


def decoded(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The kernel's result and the twin's."""
    query, keys, values, tables, lens = case.tensors(dtype)
    results = []
    for function in (paged_decode, paged_decode_reference):
        out = torch.full((*query.shape[:2], values.shape[3]), torch.nan, dtype=dtype, device=DEVICE)
        function(query, keys, values, tables, lens, out, **case.options())
        results.append(out)
    return results[0], results[1]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=12)
@given(CASES)
def test_decode(dtype: torch.dtype, case: Case) -> None:
    assert_same(*decoded(case, dtype), dtype)


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_decode_in_any_number_of_parts(
    monkeypatch: pytest.MonkeyPatch, splits: int, window: int | None, has_sinks: bool
) -> None:
    """Also more parts than there are tiles, and parts that lie before the window. A sink counts once."""
    monkeypatch.setattr(decode_module, "choose_num_splits", lambda *_: splits)
    case = Case((0, 1, 50, 300), group=4, window=window, has_sinks=has_sinks)
    assert_same(*decoded(case, torch.float32), torch.float32)


@pytest.mark.parametrize("head_size", [256])
def test_decode_of_wide_heads(head_size: int) -> None:
    assert_same(*decoded(Case((40,), head_size=head_size), torch.float32), torch.float32)


def test_decode_of_values_with_a_size_of_their_own() -> None:
    assert_same(*decoded(Case((40, 3), head_size=96, value_size=64), torch.float32), torch.float32)


@settings(max_examples=20)
@given(CASES)
def test_the_twin_is_attention(case: Case) -> None:
    query, keys, values, tables, lens = case.tensors(torch.float32)
    out = torch.empty_like(query)
    paged_decode_reference(query, keys, values, tables, lens, out, **case.options())
    for i, length in enumerate(case.seq_lens):
        wanted = attention_of(case, i, query[i : i + 1], keys, values, tables) if length else torch.zeros_like(out[i])
        torch.testing.assert_close(out[i], wanted.reshape(out[i].shape), rtol=1e-5, atol=1e-5)


def attention_of(
    case: Case,
    row: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    visible: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Attention `[tokens, num_heads, value_size]` of a row's last tokens: torch's, or, where that cannot, in full."""
    length, (_, window, softcap, sinks) = case.seq_lens[row], case.options().values()
    k, v = (cache[tables[row]].flatten(0, 1)[:length] for cache in (keys, values))
    if softcap is not None or sinks is not None:
        return plain_attention(*(x.cpu() for x in (query, k, v)), 0.3, window, softcap, visible, sinks, starts).to(
            query
        )
    k, v = (x.transpose(0, 1).repeat_interleave(case.group, dim=0) for x in (k, v))
    mask = causal_mask(len(query), length, window, DEVICE, visible, starts)
    return F.scaled_dot_product_attention(query.transpose(0, 1), k, v, attn_mask=mask, scale=0.3).transpose(0, 1)


def chunk_tensors(case: Case, query_lens: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Query (with unused tokens before and behind), caches, block tables, lengths, and where each chunk begins."""
    _, keys, values, tables, lens = case.tensors(dtype)
    shape = (200 + sum(query_lens) + 1, case.kv_heads * case.group, case.head_size)
    query = torch.randn(shape, generator=torch.Generator().manual_seed(case.seed)).to(DEVICE, dtype)
    starts = torch.tensor([200, *query_lens]).cumsum(0).to(DEVICE, torch.int32)
    return query, keys, values, tables, lens, starts


def visible_to(case: Case, query_lens: tuple[int, ...], kind: str | None) -> dict[str, Tensor]:
    """What queries of the chunks see, as arguments; none without a kind. What no query has makes no sense."""
    if kind is None:
        return {}
    generator = torch.Generator().manual_seed(case.seed)
    lens = zip(query_lens, case.seq_lens, strict=True)
    unused = torch.tensor([10**6])
    known = zip(*(visible_lens(n, length, kind, generator) for n, length in lens), strict=True)
    seen, starts = (torch.cat([unused.expand(200), *part, unused]).to(DEVICE, torch.int32) for part in known)
    return {"visible_lens": seen} | ({"span_starts": starts} if kind in UNCUT else {})


def prefilled(
    case: Case, query_lens: tuple[int, ...], dtype: torch.dtype, kind: str | None = None
) -> tuple[Tensor, Tensor]:
    """The kernel's result and the twin's, of chunks at the ends of the case's sequences."""
    query, keys, values, tables, lens, starts = chunk_tensors(case, query_lens, dtype)
    options = {**case.options(), **visible_to(case, query_lens, kind)}
    results = []
    for function in (paged_prefill, paged_prefill_reference):
        out = torch.full((*query.shape[:2], values.shape[3]), 7.0, dtype=dtype, device=DEVICE)
        function(query, keys, values, tables, lens, starts, out, **options)
        results.append(out)
    return results[0], results[1]


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Case, tuple[int, ...]]:
    """A batch, and how many query tokens each of its sequences has."""
    case = draw(CASES)
    return case, tuple(draw(st.sampled_from(sorted({0, 1, n // 2, n}))) if n else 0 for n in case.seq_lens)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10)
@given(chunks(), KINDS)
def test_prefill(dtype: torch.dtype, batch: tuple[Case, tuple[int, ...]], kind: str | None) -> None:
    assert_same(*prefilled(*batch, dtype, kind), dtype)


@pytest.mark.parametrize("window", [None, 1, 70, 128])
@pytest.mark.parametrize("kind", [None, "spans", "uncut", "chance"])
def test_prefill_of_more_than_a_tile(window: int | None, kind: str | None) -> None:
    """Tiles without a mask, tiles with one, tiles before the window, tiles behind a query that it sees."""
    case = Case((300, 200), kv_heads=1, window=window, has_sinks=kind == "spans")
    assert_same(*prefilled(case, (150, 200), torch.float32, kind), torch.float32)


@settings(max_examples=15)
@given(chunks(), KINDS)
def test_the_prefill_twin_is_attention(batch: tuple[Case, tuple[int, ...]], kind: str | None) -> None:
    case, query_lens = batch
    visible = visible_to(case, query_lens, kind)
    query, keys, values, tables, lens, starts = chunk_tensors(case, query_lens, torch.float32)
    out = torch.empty_like(query)
    paged_prefill_reference(
        query, keys, values, tables, lens, starts, out, **case.options(), **visible
    )  # fmt: skip
    for i, count in enumerate(query_lens):
        part = slice(int(starts[i]), int(starts[i]) + count)
        seen = {name.removesuffix("_lens").removeprefix("span_"): of_all[part] for name, of_all in visible.items()}
        wanted = attention_of(case, i, query[part], keys, values, tables, **seen)
        torch.testing.assert_close(out[part], wanted, rtol=1e-5, atol=1e-5)


def test_splits_fill_the_gpu_and_no_more() -> None:
    assert decode_module.choose_num_splits(8, 100_000, torch.device("cpu")) == 32
    assert decode_module.choose_num_splits(64 * 8, 100_000, torch.device("cpu")) == 1
    assert decode_module.choose_num_splits(8, 512, torch.device("cpu")) == 4
    assert decode_module.choose_num_splits(1, 16, torch.device("cpu")) == 1
