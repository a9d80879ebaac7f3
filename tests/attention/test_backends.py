"""Paged attention equals plain attention over contiguous keys and values, whatever the batch looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache
from corellm.attention.cpu import CpuAttention
from corellm.attention.distance_bias import DistanceBias
from corellm.attention.reference import ReferenceAttention
from corellm.attention.registry import select_backend
from corellm.errors import ConfigError, ContractError
from corellm_kernels.cpu.backend import CompiledAttention

BACKENDS: list[type[AttentionBackend]] = [ReferenceAttention, CpuAttention]
if CompiledAttention.unsupported(torch.device("cpu"), torch.float32) is None:
    BACKENDS.append(CompiledAttention)
HEAD_SIZE = 16


VALUE_SIZE = 24


def plain_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    visible: Tensor | None = None,
    sinks: Tensor | None = None,
    starts: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The oracle, in float64 and written out: `query [n, H, D]` are the last n of the `keys [L, Hkv, D]` positions.

    `visible [n]` is how many keys each query sees, from `starts [n]` on whatever the window; `sinks [H]` one more score
    of each head; `bias [n, H, distances]` what is added to scores.
    """
    n, length = query.shape[0], keys.shape[0]
    groups = query.shape[1] // keys.shape[1]
    k = keys.double().repeat_interleave(groups, 1).transpose(0, 1)
    v = values.double().repeat_interleave(groups, 1).transpose(0, 1)
    scores = query.double().transpose(0, 1) @ k.transpose(1, 2) * scale
    scores = scores if softcap is None else (scores / softcap).tanh() * softcap
    i = torch.arange(length - n, length)[:, None]
    j = torch.arange(length)[None]
    if bias is not None:
        scores += bias[torch.arange(n)[:, None], :, (i - j).clamp(0, bias.shape[-1] - 1)].permute(2, 0, 1)
    seen = (j <= i) if visible is None else j < visible.cpu()[:, None]
    if window is not None:
        within = j > i - window
        seen = seen & (within if starts is None else within | (j >= starts.cpu()[:, None]))
    weights = scores.masked_fill(~seen, -torch.inf).exp()  # of small scores, as those of tests are
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.cpu().double().exp()[:, None, None]
    return (weights / total @ v).transpose(0, 1)


UNCUT = ("uncut", "chance")
"""Kinds of spans that no window cuts."""


def visible_lens(n: int, length: int, kind: str | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """How many of `length` tokens each of the last `n` sees, with spans whose tokens see each other, or by chance.

    Without a kind, those up to itself. And where the span of each begins, or it itself.
    """

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    starts, start = torch.arange(length), 0
    seen = starts + 1
    if kind == "chance":
        seen, starts = (
            seen + torch.tensor([draw(0, length - int(own)) for own in seen]),
            starts - torch.tensor([draw(0, int(own)) * draw(0, 1) for own in starts]),
        )
    while kind in ("spans", "uncut") and start < length:
        stop = min(length, start + draw(1, 30))
        if draw(0, 1):
            seen[start:stop], starts[start:stop] = stop, start
        start = stop
    return seen[length - n :], starts[length - n :]


def run(
    backend: AttentionBackend,
    lens: list[tuple[int, int]],
    *,
    kv_heads: int = 2,
    groups: int = 2,
    block_size: int = 8,
    window: int | None = None,
    softcap: float | None = None,
    visible: str | None = None,
    with_sinks: bool = False,
    bias: str | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """A step over sequences of `(query_len, seq_len)` in scattered blocks: what the backend gives, and the oracle.

    Where tokens see later ones, they do in half of the sequences.
    """
    generator = torch.Generator().manual_seed(seed)
    lens = sorted(lens, key=lambda pair: pair[0] != 1)
    needed = [-(-seq // block_size) for _, seq in lens]
    order = (torch.randperm(sum(needed) + 3, generator=generator) + 1).tolist()  # block 0 is the null block
    shape, sizes = (sum(needed) + 4, block_size, kv_heads), (HEAD_SIZE, VALUE_SIZE)
    cache = LayerCache(*(torch.full((*shape, size), torch.nan, dtype=dtype) for size in sizes))  # of earlier owners
    tables = np.zeros((len(lens), max(needed)), dtype=np.int64)
    sinks = torch.randn(kv_heads * groups, generator=generator).mul(2).to(dtype) if with_sinks else None
    of_all = None if bias is None else torch.randn(1, kv_heads * groups, 9, generator=generator)
    tables_of_tokens = []
    queries, keys, values, slots, seen, span_starts, want = [], [], [], [], [], [], []
    for row, ((n, length), blocks) in enumerate(zip(lens, needed, strict=True)):
        tables[row, :blocks] = [order.pop() for _ in range(blocks)]
        q = torch.randn(n, kv_heads * groups, HEAD_SIZE, generator=generator).to(dtype)
        k, v = (torch.randn(length, kv_heads, size, generator=generator).to(dtype) for size in sizes)
        slot = torch.tensor([int(tables[row, t // block_size]) * block_size + t % block_size for t in range(length)])
        cache.write(k[: length - n], v[: length - n], slot[: length - n])
        (
            queries.append(q),
            keys.append(k[length - n :]),
            values.append(v[length - n :]),
            slots.append(slot[length - n :]),
        )
        kind = visible if torch.rand((), generator=generator) < 0.5 else None
        for known, of_query in zip((seen, span_starts), visible_lens(n, length, kind, generator), strict=True):
            known.append(of_query)
        uncut = span_starts[-1] if visible in UNCUT else None
        table = of_all
        if table is not None:
            of_token = torch.randn(n, *table.shape[1:], generator=generator)
            table = of_token if bias == "by token" else table.expand(n, -1, -1)
            tables_of_tokens.append(table)
        want.append(plain_attention(q, k, v, 0.3, window, softcap, seen[-1], sinks, uncut, table))
    query_lens, seq_lens = [n for n, _ in lens], [length for _, length in lens]
    outside = [
        n == 1 and (visible not in UNCUT or int(start[0]) == length - 1)
        for (n, length), start in zip(lens, span_starts, strict=True)
    ]
    metadata = AttentionMetadata(
        num_decodes=[*outside, False].index(False),
        query_lens=query_lens,
        seq_lens=seq_lens,
        query_start_loc=torch.tensor([0, *np.cumsum(query_lens)], dtype=torch.int32),
        seq_lens_tensor=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.from_numpy(tables),
        slot_mapping=torch.cat(slots),
        visible_lens=torch.cat(seen).int() if visible else None,
        span_starts=torch.cat(span_starts).int() if visible in UNCUT else None,
    )
    given = torch.cat(tables_of_tokens) if bias == "by token" else of_all
    call = AttentionCall(
        torch.cat(queries), torch.cat(keys), torch.cat(values), 0.3, window, None, softcap, sinks,
        None if given is None else DistanceBias(given),
    )  # fmt: skip
    return backend.forward(call, cache, metadata), torch.cat(want)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@given(
    lens=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 60)).map(lambda p: (p[0], p[0] + p[1])), min_size=1, max_size=9
    ),
    kv_heads=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2, 5]),
    block_size=st.sampled_from([1, 8, 16]),
    window=st.sampled_from([None, 1, 7, 1000]),
    softcap=st.sampled_from([None, 0.7]),
    visible=st.sampled_from([None, "spans", "uncut", "chance"]),
    with_sinks=st.booleans(),
    bias=st.sampled_from([None, None, "by token", "of all"]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=120, deadline=None)
def test_equals_plain_attention(
    backend: type[AttentionBackend],
    lens: list[tuple[int, int]],
    kv_heads: int,
    groups: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    visible: str | None,
    with_sinks: bool,
    bias: str | None,
    seed: int,
) -> None:
    """Any mixture of decodes, whole and continued prompts, any head grouping, block size, window, cap, sinks, spans.

    With and without biases of distances, which there are fewer of than tokens.
    """
    shapes = {"kv_heads": kv_heads, "groups": groups, "block_size": block_size}
    asked = {"window": window, "softcap": softcap, "visible": visible, "with_sinks": with_sinks, "bias": bias}
    got, want = run(backend(), lens, **shapes, **asked, seed=seed)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("window", [None, 5, 25, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spans_of_long_prompts(backend: type[AttentionBackend], window: int | None, dtype: torch.dtype) -> None:
    """Windows smaller and larger than spans, which lie on both sides of where kernels cut queries and keys."""
    exact = dtype == torch.float32
    for seed, kind in enumerate(["spans", "spans", "uncut", "uncut", "chance"]):
        lens = [(1, 90), (300, 300), (150, 290), (40, 200), (9, 140), (1, 64), (64, 64), (2, 129)]
        got, want = run(
            backend(), lens, groups=3, window=window, visible=kind, with_sinks=seed in (1, 3), dtype=dtype, seed=seed
        )
        torch.testing.assert_close(got.double(), want, atol=1e-5 if exact else 2e-2, rtol=1e-4 if exact else 2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_half_precision(dtype: torch.dtype, with_sinks: bool) -> None:
    """The CPU backend in the types it is arranged for."""
    got, want = run(CpuAttention(), [(1, 300), (1, 17), (1, 512), (9, 9), (4, 40)], dtype=dtype, with_sinks=with_sinks)
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=2e-2)


def test_decode_groups_are_cut_and_cover_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scratch of a few blocks forces many groups; results stay, so does reuse of the plan for the next layer."""
    monkeypatch.setattr("corellm.attention.cpu._SCRATCH_BYTES", 5000)
    got, want = run(CpuAttention(), [(1, n) for n in (5, 90, 33, 8, 61, 1, 17)] + [(3, 10)])
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


class OfAnOlderCore(ReferenceAttention):
    """A backend as it was written before calls had a type."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **more: object) -> Tensor:  # type: ignore[override]
        return query


class WithAnOldName(ReferenceAttention):
    """A backend that says with an old name that it can be captured."""

    recordable = True


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OfAnOlderCore", r"forward\(self, query.*; make it forward\(self, call, cache, metadata\)"),
        ("WithAnOldName", "recordable; .*capturable"),
    ],
)
def test_a_backend_of_an_older_core_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    """The error names it and says what to change."""
    offer = ("the extension 'mine' of toy", "old", f"{__name__}:{name}")
    monkeypatch.setattr("corellm.attention.registry.offers_by_name", lambda *_: [offer])
    with pytest.raises(ContractError, match=rf"(?s)the extension 'mine' of toy: .*{words}"):
        select_backend(torch.device("cpu"), torch.float32)


def test_selection() -> None:
    """On the CPU the compiled backend is chosen if it is there; a name is honoured; wrong ones say what there is."""
    cpu = torch.device("cpu")
    built = CompiledAttention.unsupported(cpu, torch.float32) is None
    assert select_backend(cpu, torch.float32).name == ("compiled" if built else "cpu")
    assert select_backend(cpu, torch.float16).name == "cpu"
    assert select_backend(cpu, torch.float32, "reference").name == "reference"
    with pytest.raises(ConfigError, match=r"'flash' .*cpu, reference"):
        select_backend(cpu, torch.float32, "flash")
    with pytest.raises(ConfigError, match=r"'cpu' .* not on cuda"):
        select_backend(torch.device("cuda"), torch.float32, "cpu")
