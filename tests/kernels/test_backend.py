"""The Triton backend over several steps: prompts in chunks, decodes beside chunks of others, a paged cache."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache, Rotary
from corellm.attention.cpu import CpuAttention
from corellm.attention.paged import PagedAttention
from corellm.attention.reference import ReferenceAttention
from corellm.errors import ContractError
from corellm_kernels.cpu.backend import CompiledAttention
from corellm_kernels.gpu.backend import TritonAttention
from tests.attention.test_backends import plain_attention
from tests.kernels.comparing import DEVICE

KV_HEADS, GROUPS, SIZE, BLOCK_SIZE = 2, 2, 32, 16
LENGTHS = (50, 7, 33)
STEPS = (((0, 40), (0, 6), (0, 0)), ((0, 0), (6, 7), (0, 33)), ((40, 41), (0, 0), (0, 0)), ((41, 50), (0, 0), (0, 0)))
"""Tokens `[start, end)` of each sequence in each step: mixtures of decodes, whole prompts and chunks."""
SPANS = ((5, 38), (1, 6), (10, 12))
"""Tokens `[start, end)` of each sequence, within a step, that see each other."""
PAIRS = [
    (None, None, False, True), (None, 1.5, True, False), (12, None, True, True), (12, 1.5, False, False),
    (40, None, False, False), (40, 1.5, True, True),
]  # fmt: skip
"""Every two values of a window, a softcap, sinks and uncut spans are in one of them."""
SETTINGS = [
    pytest.param(*one, marks=() if one in PAIRS or DEVICE.type == "cuda" else pytest.mark.full)
    for one in product((None, 12, 40), (None, 1.5), (False, True), (False, True))
]
"""All of them; interpreted, where a case takes seconds, those of `PAIRS` unless `-m full`."""


def angles(sections: tuple[int, int, int] | None) -> Rotary:
    """The angles of positions 0 to 63; with sections three different ones each."""
    positions = torch.arange(64.0)[:, None] * torch.tensor([[1.0], [0.5], [0.25]])[:, None]  # [3, 64, 1]
    frequencies = 100.0 ** -(torch.arange(SIZE // 2) / (SIZE // 2))
    turned = torch.cat([positions * frequencies] * 2, dim=-1).to(DEVICE)
    return Rotary(turned.cos(), turned.sin(), sections) if sections else Rotary(turned[0].cos(), turned[0].sin())


def make_cache(dtype: torch.dtype, blocks: int) -> LayerCache:
    shape = (blocks, BLOCK_SIZE, KV_HEADS)
    key, value = (torch.zeros(*shape, SIZE, device=DEVICE).to(dtype) for _ in range(2))
    if dtype.is_floating_point and dtype.itemsize > 1:
        return LayerCache(key, value)
    return LayerCache(key, value, *(torch.zeros(shape, device=DEVICE) for _ in range(2)))


def outputs(
    cache: LayerCache,
    rotary: Rotary | None,
    window: int | None,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    two_way: bool = False,
    uncut: bool = False,
) -> tuple[Tensor, Tensor]:
    """What the backend gives for all tokens of all sequences, and the oracle."""
    generator = torch.Generator().manual_seed(0)
    backend = TritonAttention()
    queries, keys, values = (
        [torch.randn(n, heads, SIZE, generator=generator).to(DEVICE) for n in LENGTHS]
        for heads in (KV_HEADS * GROUPS, KV_HEADS, KV_HEADS)
    )
    tables = torch.randperm(12, generator=generator).add(1).view(3, 4).to(DEVICE)
    found = [torch.full_like(query, torch.nan) for query in queries]
    visible = [torch.arange(n, dtype=torch.int32, device=DEVICE) + 1 for n in LENGTHS]
    for seen, (first, end) in zip(visible, SPANS if two_way else (), strict=two_way):
        seen[first:end] = end
    firsts = [torch.arange(n, dtype=torch.int32, device=DEVICE) for n in LENGTHS]
    for own, (first, end) in zip(firsts, SPANS if two_way else (), strict=two_way):
        own[first:end] = first
    for step in STEPS:
        parts = sorted(((i, a, b) for i, (a, b) in enumerate(step) if a < b), key=lambda part: part[2] - part[1] != 1)
        index = [torch.arange(a, b, device=DEVICE) for _, a, b in parts]
        rows = [i for i, _, _ in parts]
        query_lens, seq_lens = [b - a for _, a, b in parts], [b for _, _, b in parts]
        outside = [b - a == 1 and not (uncut and int(firsts[i][a]) < a) for i, a, b in parts]
        metadata = AttentionMetadata(
            num_decodes=[*outside, False].index(False),
            query_lens=query_lens,
            seq_lens=seq_lens,
            query_start_loc=torch.tensor([0, *query_lens], device=DEVICE).cumsum(0).int(),
            seq_lens_tensor=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
            block_tables=tables[rows],
            slot_mapping=torch.cat(
                [tables[i][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for i, at in zip(rows, index, strict=True)]
            ),
            visible_lens=torch.cat([visible[i][at] for i, at in zip(rows, index, strict=True)]) if two_way else None,
            span_starts=torch.cat([firsts[i][at] for i, at in zip(rows, index, strict=True)]) if uncut else None,
        )
        query, key, value = (
            torch.cat([of[i][at] for i, at in zip(rows, index, strict=True)]) for of in (queries, keys, values)
        )
        at = torch.cat(index)
        turn = None
        if rotary is not None:
            turn = Rotary(rotary.cos[..., at, :], rotary.sin[..., at, :], rotary.sections)
        call = AttentionCall(query, key, value, 0.2, window, turn, softcap, sinks)
        out = backend.forward(call, cache, metadata)
        for i, own, part in zip(rows, index, out.split(query_lens), strict=True):
            found[i][own] = part
    wanted = []
    for query, key, value, seen, first in zip(queries, keys, values, visible, firsts, strict=True):
        if rotary is not None:
            turn = Rotary(rotary.cos[..., : len(query), :], rotary.sin[..., : len(query), :], rotary.sections)
            query, key = turn.rotate(query), turn.rotate(key)
        tensors = query.cpu(), key.cpu(), value.cpu()
        wanted.append(plain_attention(*tensors, 0.2, window, softcap, seen, sinks, first if uncut else None).to(DEVICE))
    return torch.cat(found), torch.cat(wanted)


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("sections", [None, (), (4, 6, 6)])
def test_steps(window: int | None, sections: tuple[int, int, int] | None) -> None:
    """Without rotary positions, with one position per token, with three."""
    rotary = None if sections is None else angles(sections or None)
    found, wanted = outputs(make_cache(torch.float32, 13), rotary, window)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("window", "softcap", "with_sinks", "uncut"), SETTINGS)
def test_spans_caps_and_sinks(window: int | None, softcap: float | None, with_sinks: bool, uncut: bool) -> None:
    """Beside each other, in chunks and decodes; windows are smaller and larger than the spans, and cut them or not."""
    sinks = torch.linspace(-3, 3, KV_HEADS * GROUPS, device=DEVICE) if with_sinks else None
    asked = {"softcap": softcap, "sinks": sinks, "two_way": True, "uncut": uncut}
    found, wanted = outputs(make_cache(torch.float32, 13), angles(None), window, **asked)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("asked", [{}, {"softcap": 1.5}, {"sinks": torch.tensor([2.0, -1, 0, 1])}], ids=str)
@pytest.mark.parametrize(("dtype", "off"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.08)])
def test_quantized_caches(dtype: torch.dtype, off: float, asked: dict[str, Any]) -> None:
    """Caches of 8 bits, with a factor for every token and head, are as near as 8 bits go."""
    asked = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in asked.items()}
    found, wanted = outputs(make_cache(dtype, 13), angles(None), None, **asked)
    error = (found - wanted).norm() / wanted.norm()
    assert 0 < error < off


@pytest.mark.parametrize(
    "backend", [TritonAttention, CompiledAttention, CpuAttention, ReferenceAttention], ids=lambda backend: backend.name
)
@pytest.mark.parametrize("name", ["queries", "keys", "values"])
def test_a_layer_with_fewer_tokens_is_refused(backend: type[AttentionBackend], name: str) -> None:
    """As of a decoder that leaves out tokens before its last layer: kernels would read beyond them."""
    device = DEVICE if backend is TritonAttention else torch.device("cpu")
    query, key, value = (
        torch.zeros(2 if name == few else 3, heads, SIZE, device=device)
        for few, heads in (("queries", KV_HEADS * GROUPS), ("keys", KV_HEADS), ("values", KV_HEADS))
    )
    starts, lens, table, slots = (
        torch.tensor(values, device=device) for values in ([0, 3], [3], [[1]], [BLOCK_SIZE + i for i in range(3)])
    )
    metadata = AttentionMetadata(0, [3], [3], starts.int(), lens, table, slots)
    shape = (3, BLOCK_SIZE, KV_HEADS, SIZE)
    cache = LayerCache(torch.zeros(shape, device=device), torch.zeros(shape, device=device))
    with pytest.raises(ContractError, match=f"{name} .*2 tokens .*step of 3"):
        PagedAttention(backend(), {0: cache}, metadata).attend(0, AttentionCall(query, key, value, 0.2))


def test_it_says_where_it_does_not_run() -> None:
    told = TritonAttention.unsupported(torch.device("cpu"), torch.float32)
    assert told is not None
    assert told.endswith("cpu")
