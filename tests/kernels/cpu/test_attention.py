"""Rotation, cache and attention in one call equal their torch twins; `tests/attention` has the step's shapes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from corellm.attention.backend import AttentionCall, AttentionMetadata, LayerCache, Rotary
from corellm.attention.distance_bias import DistanceBias
from corellm.attention.reference import ReferenceAttention
from corellm.errors import ContractError
from corellm_kernels.cpu.backend import CompiledAttention
from corellm_kernels.gpu.rotary import rotate_and_cache_reference
from tests.system.allocated import needs_glibc

BLOCK, LENS = 16, [(1, 70), (1, 1), (1, 129), (40, 40), (7, 100), (33, 65)]
"""Query tokens and tokens of each sequence."""
SINKS = torch.linspace(3, -2, 40)
"""Sinks of up to 40 heads; some of them are most of what a softmax is made of."""


class Step:
    """A step on random numbers, `heads` over `kv_heads` heads of `size`, in float32 or bfloat16."""

    def __init__(self, heads: int, kv_heads: int, size: int, dtype: torch.dtype = torch.float32) -> None:
        self.generator = torch.Generator().manual_seed(heads * size)
        self.dtype, self.tokens = dtype, sum(n for n, _ in LENS)
        blocks = [-(-length // BLOCK) for _, length in LENS]
        order = (torch.randperm(sum(blocks), generator=self.generator) + 1).split(blocks)
        self.tables = torch.zeros(len(LENS), max(blocks), dtype=torch.long)
        slots = []
        for row, ((n, length), own) in enumerate(zip(LENS, order, strict=True)):
            self.tables[row, : len(own)] = own
            at = torch.arange(length - n, length)
            slots.append(own[at // BLOCK] * BLOCK + at % BLOCK)
        self.slots, self.num_blocks = torch.cat(slots), sum(blocks) + 1
        self.query, self.key, self.value = (
            x.unflatten(1, (-1, size))
            for x in self.draw(self.tokens, (heads + 2 * kv_heads) * size).split(
                [heads * size, kv_heads * size, kv_heads * size], dim=1
            )
        )
        self.shape = (self.num_blocks, BLOCK, kv_heads, size)

    def draw(self, *shape: int) -> Tensor:
        """Random numbers."""
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def metadata(self) -> AttentionMetadata:
        """The metadata of the step."""
        query_lens, lens = [n for n, _ in LENS], [length for _, length in LENS]
        starts = torch.tensor([0, *query_lens]).cumsum(0).int()
        return AttentionMetadata(3, query_lens, lens, starts, torch.tensor(lens), self.tables, self.slots)

    def run(self, cache: LayerCache, rotary: Rotary | None = None, **options: Any) -> Tensor:
        """Run it on copies of its projection's parts, so that it can run again."""
        heads = self.query.shape[1]
        whole = torch.cat([self.query, self.key, self.value], dim=1)  # as the parts of one projection
        parts = whole.split([heads, self.key.shape[1], self.value.shape[1]], dim=1)
        return CompiledAttention().forward(AttentionCall(*parts, 0.2, rotary=rotary, **options), cache, self.metadata())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 16), (3, 3, 20), (40, 1, 8), (8, 2, 64)])
@pytest.mark.parametrize("sections", [None, (1, 2, 1)])
def test_it_rotates_as_the_twin(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, sections: tuple[int, int, int] | None
) -> None:
    step = Step(heads, kv_heads, size, dtype)
    angles = (8,) if sections is None else (3, 8)
    cos, sin = (step.draw(*angles[:-1], step.tokens, angles[-1]) for _ in range(2))
    earlier = LayerCache(step.draw(*step.shape), step.draw(*step.shape))
    ours, theirs = (LayerCache(earlier.key.clone(), earlier.value.clone()) for _ in range(2))
    output = step.run(ours, Rotary(cos, sin, sections))
    query = step.query.clone()
    rotate_and_cache_reference(
        query, step.key, step.value, cos, sin, theirs.key, theirs.value, step.slots, sections=sections
    )
    torch.testing.assert_close(ours.key, theirs.key)
    assert torch.equal(ours.value, theirs.value)
    keys = theirs.key.flatten(0, 1)[step.slots]
    wanted = ReferenceAttention().forward(AttentionCall(query, keys, step.value, 0.2), theirs, step.metadata())
    exact = dtype == torch.float32
    torch.testing.assert_close(output, wanted, rtol=1e-4 if exact else 2e-2, atol=1e-5 if exact else 2e-2)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"softcap": 3.0}, {"sinks": SINKS[:4]}])
def test_int8_caches_are_near_the_exact_ones(options: dict[str, Any]) -> None:
    step = Step(4, 2, 32)
    exact = LayerCache(torch.zeros(step.shape), torch.zeros(step.shape))
    quantized = LayerCache(
        *(torch.zeros(step.shape, dtype=torch.int8) for _ in range(2)), *(torch.zeros(step.shape[:3]) for _ in range(2))
    )
    wanted, ours = step.run(exact, **options), step.run(quantized, **options)
    assert quantized.key_scale is not None
    assert ((ours - wanted).norm() / wanted.norm()).item() < 0.02
    again = quantized.key.float() * quantized.key_scale[..., None]
    step_of_key = exact.key.abs().amax(-1, keepdim=True) / 127
    assert ((again - exact.key).abs() <= step_of_key * 0.51).all()


BIAS = DistanceBias(torch.linspace(-3, 3, 40 * 100).sin().view(1, 40, 100).mul(2))
"""Bias of up to 40 heads, by distances of up to 99 tokens."""


def in_chunks(
    tokens: tuple[Tensor, Tensor, Tensor],
    cuts: Sequence[int],
    cached: torch.dtype,
    *,
    spans: Sequence[tuple[int, int]] = (),
    **options: Any,
) -> Tensor:
    """Attention of one sequence's queries, keys and values, computed from each cut to the next.

    In `spans`, each of which must be in one chunk, tokens see each other.
    """
    query, key, value = tokens
    blocks = -(-len(query) // BLOCK)
    slots = torch.arange(len(query)) + BLOCK
    cache = empty_cache((blocks + 1, BLOCK, *key.shape[1:]), cached)
    parts = []
    visible = torch.arange(len(query), dtype=torch.int32) + 1
    for start, stop in spans:
        visible[start:stop] = stop
    for start, stop in pairwise(cuts):
        n = stop - start
        metadata = AttentionMetadata(
            int(n == 1), [n], [stop], torch.tensor([0, n], dtype=torch.int32), torch.tensor([stop]),
            torch.arange(1, blocks + 1)[None], slots[start:stop], visible[start:stop] if spans else None,
        )  # fmt: skip
        call = AttentionCall(query[start:stop], key[start:stop], value[start:stop], 0.3, **options)
        parts.append(CompiledAttention().forward(call, cache, metadata))
    return torch.cat(parts)


SHAPES = [(4, 64), (4, 20), (10, 64), (14, 64), (16, 20), (40, 64)]


@pytest.mark.parametrize(
    "options", [{}, {"sliding_window": 24}, {"softcap": 2.0}, {"sinks": True, "bias": True}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(("heads", "size"), SHAPES)
def test_a_token_is_the_same_bits_in_any_chunk(
    options: dict[str, Any], dtype: torch.dtype, quantized: bool, heads: int, size: int
) -> None:
    """A sequence of 300 tokens, where the running maximum changes, is the same bits whole, in chunks and as decodes.

    Keys and values of many rows are copied into columns; those of few rows only where vectors do not fit, into rows.
    """
    step = Step(heads, 2, size, dtype)
    tokens = step.draw(300, heads, size), step.draw(300, 2, size), step.draw(300, 2, size)
    cached = torch.int8 if quantized else dtype
    given = {"sinks": SINKS[:heads], "bias": DistanceBias(BIAS.table[:, :heads])}
    options = {name: given.get(name, value) for name, value in options.items()}
    whole = in_chunks(tokens, [0, 300], cached, **options)
    for cuts in ([0, 299, 300], [0, 1, 150, 151, 300], [0, 64, 65, 130, 257, 260, 300], range(301)):
        assert torch.equal(in_chunks(tokens, cuts, cached, **options), whole)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(("heads", "size"), SHAPES)
def test_a_token_of_a_span_is_the_same_bits_in_any_chunk(
    window: int | None, dtype: torch.dtype, quantized: bool, heads: int, size: int
) -> None:
    """Spans lie at the beginning of a chunk, in it, at its end, are all of it; longer and shorter than the window.

    Outside of them tokens are the same bits as without any.
    """
    spans = [(5, 15), (60, 150), (151, 155), (200, 290)]
    step = Step(heads, 2, size, dtype)
    tokens = step.draw(300, heads, size), step.draw(300, 2, size), step.draw(300, 2, size)
    options = {"cached": torch.int8 if quantized else dtype, "sliding_window": window}
    whole = in_chunks(tokens, [0, 300], **options, spans=spans)
    for cuts in ([0, 60, 150, 151, 300], [0, 1, 5, 155, 200, 299, 300], [0, 15, 200, 290, 291, 300]):
        assert torch.equal(in_chunks(tokens, cuts, **options, spans=spans), whole)
    inside = torch.zeros(300, dtype=torch.bool)
    for start, stop in spans:
        inside[start : stop - 1] = True
    causal = in_chunks(tokens, [0, 300], **options)
    assert torch.equal((whole != causal).flatten(1).any(1), inside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 40])
def test_sinks_of_any_size_and_type(dtype: torch.dtype, heads: int) -> None:
    """One of minus infinity is none, a very large one leaves nothing; its type may be any."""
    step = Step(heads, 2, 64, dtype)
    tokens = step.draw(100, heads, 64), step.draw(100, 2, 64), step.draw(100, 2, 64)
    given = (tokens, [0, 60, 98, 100], dtype)
    assert torch.equal(in_chunks(*given, sinks=torch.full((heads,), -torch.inf)), in_chunks(*given))
    assert not in_chunks(*given, sinks=torch.full((heads,), 1e9)).any()
    assert in_chunks(*given, sinks=torch.full((heads,), torch.nan)).isnan().all()
    exact = SINKS[:heads].bfloat16()
    wanted = in_chunks(*given, sinks=exact.float())
    for sinks in (exact, exact.double(), exact.repeat_interleave(2)[::2]):
        assert torch.equal(in_chunks(*given, sinks=sinks), wanted)


@pytest.mark.parametrize("heads", [4, 40])
def test_scores_may_be_very_low(heads: int) -> None:
    """All of -2e34: each token gets the mean of the values that it sees, as in torch."""
    step = Step(heads, 2, 64, torch.float32)
    query, key, value = torch.full((70, heads, 64), -1e17), torch.full((70, 2, 64), 1e16), step.draw(70, 2, 64)
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    found = in_chunks((query, key, value), [0, 60, 69, 70], torch.float32)
    torch.testing.assert_close(found, wanted[0].transpose(0, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [300, 2**32 + 5, 2**63 - 1])
def test_a_window_beyond_all_tokens_is_none(window: int) -> None:
    """A window of any size beyond all tokens gives the same bits as none."""
    step = Step(4, 2, 64, torch.float32)
    tokens = step.draw(70, 4, 64), step.draw(70, 2, 64), step.draw(70, 2, 64)
    cuts = [0, 60, 70]
    windowed = in_chunks(tokens, cuts, torch.float32, sliding_window=window)
    assert torch.equal(windowed, in_chunks(tokens, cuts, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_decode_is_the_same_bits_alone_and_among_many(dtype: torch.dtype, quantized: bool) -> None:
    """Among many, one thread reads all its heads."""
    num_seqs, length, heads, kv_heads, size = 8 * torch.get_num_threads(), 150, 6, 3, 32
    step = Step(heads, kv_heads, size, dtype)
    query, key, value = (step.draw(num_seqs, n, size) for n in (heads, kv_heads, kv_heads))
    blocks = -(-length // BLOCK)
    tables = (torch.randperm(num_seqs * blocks, generator=step.generator) + 1).view(num_seqs, blocks)
    slots = tables[:, (length - 1) // BLOCK] * BLOCK + (length - 1) % BLOCK
    cache = empty_cache((num_seqs * blocks + 1, BLOCK, kv_heads, size), torch.int8 if quantized else dtype)
    for tensor in (cache.key, cache.value):
        tensor.copy_(step.draw(*tensor.shape) * (50 if quantized else 1))
    for scale in (cache.key_scale, cache.value_scale):
        if scale is not None:
            scale.fill_(0.02)

    def run(rows: slice) -> Tensor:
        n = len(range(num_seqs)[rows])
        metadata = AttentionMetadata(
            n, [1] * n, [length] * n, torch.arange(n + 1, dtype=torch.int32), torch.full((n,), length), tables[rows],
            slots[rows],
        )  # fmt: skip
        return CompiledAttention().forward(AttentionCall(query[rows], key[rows], value[rows], 0.2), cache, metadata)

    together = run(slice(None))
    assert torch.equal(torch.cat([run(slice(i, i + 1)) for i in range(num_seqs)]), together)
    assert torch.equal(torch.cat([run(slice(i, i + 2)) for i in range(0, num_seqs, 2)]), together)


def empty_cache(shape: tuple[int, ...], dtype: torch.dtype) -> LayerCache:
    """A cache that nothing was written to: reading it shows."""
    if dtype == torch.int8:
        bytes_ = [torch.zeros(shape, dtype=dtype) for _ in range(2)]
        return LayerCache(*bytes_, *(torch.full(shape[:-1], torch.nan) for _ in range(2)))
    return LayerCache(*(torch.full(shape, torch.nan, dtype=dtype) for _ in range(2)))


def test_padding_reads_and_writes_nothing() -> None:
    cache = LayerCache(*(torch.full((3, BLOCK, 2, 8), torch.nan) for _ in range(2)))
    query, key, value = torch.randn(2, 4, 8), torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    metadata = AttentionMetadata(
        2, [1, 1], [1, 0], torch.arange(3, dtype=torch.int32), torch.tensor([1, 0]), torch.tensor([[1], [0]]),
        torch.tensor([BLOCK, 0]),
    )  # fmt: skip
    output = CompiledAttention().forward(AttentionCall(query, key, value, 1.0), cache, metadata)
    assert torch.equal(output[0].view(2, 2, 8), value[0][:, None].expand(2, 2, 8))
    assert torch.equal(output[1], torch.zeros(4, 8))
    assert cache.key[1, 1:].isnan().all()
    assert cache.key[2].isnan().all()


@pytest.mark.parametrize(("key", "cached"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_mixed_types_are_refused(key: torch.dtype, cached: torch.dtype) -> None:
    step = Step(4, 2, 16)
    step.key = step.key.to(key)
    cache = LayerCache(*(torch.zeros(step.shape, dtype=cached) for _ in range(2)))
    call = AttentionCall(step.query, step.key, step.value, 0.2)
    with pytest.raises(ContractError, match=r"cache of torch\."):
        CompiledAttention().forward(call, cache, step.metadata())


SCRATCH = """
import os, threading, time
import torch
from corellm.attention.backend import LayerCache
from tests.system.allocated import in_use
from tests.kernels.cpu.test_attention import Step

torch.set_num_threads(1)
step = Step(4, 2, 64)
cache = LayerCache(torch.zeros(step.shape), torch.zeros(step.shape))

def held(count):
    "Bytes of the allocator while so many threads that ran the step live, and after they ended."
    ran, may_end = threading.Barrier(count + 1), threading.Event()
    def run():
        step.run(cache)
        ran.wait()
        may_end.wait()
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    native = [thread.native_id for thread in threads]
    ran.wait()
    while_alive = in_use()
    may_end.set()
    for thread in threads:
        thread.join()
    while any(os.path.exists(f"/proc/self/task/{thread}") for thread in native):
        time.sleep(0.01)
    return while_alive, in_use()

held(30)
_, before = held(30)
for _ in range(3):
    while_alive, after = held(30)
    print(while_alive - before, after - before)
    before = after
"""


@needs_glibc
def test_threads_leave_no_memory_behind() -> None:
    """Each has memory of its own inside the library, by the allocator's own count."""
    command = [sys.executable, "-c", SCRATCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, left = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert min(held) > 30 * 4096
    assert min(left) < 4096  # what the interpreter keeps of its own comes once; a leak comes each time


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_int8_caches_keep_what_is_no_number(bad: float) -> None:
    """The token and those after it come out as NaN, none as plausible numbers."""
    length, size = 40, 16
    metadata = AttentionMetadata(
        0, [length], [length], torch.tensor([0, length], dtype=torch.int32), torch.tensor([length]),
        torch.arange(1, 4)[None], torch.arange(length) + BLOCK,
    )  # fmt: skip
    for where in (1, 2):
        query_key_value = [torch.rand(length, 1, size) for _ in range(3)]
        query_key_value[where][20, 0, 3] = bad
        cache = empty_cache((4, BLOCK, 1, size), torch.int8)
        output = CompiledAttention().forward(AttentionCall(*query_key_value, 0.3), cache, metadata)
        assert output[20:].isnan().any(-1).all()


@pytest.mark.parametrize("window", [None, 24])
def test_keys_that_are_no_numbers_are_seen(window: int | None) -> None:
    """NaN and infinite scores come out as NaN, as from torch, of those queries only that see the key."""
    torch.manual_seed(0)
    length, size = 100, 16
    for bad in (torch.nan, torch.inf, -torch.inf):
        query, key, value = (torch.rand(length, 1, size) for _ in range(3))
        key[40] = bad
        cache = LayerCache(*(torch.zeros(8, BLOCK, 1, size) for _ in range(2)))
        metadata = AttentionMetadata(
            0, [length], [length], torch.tensor([0, length], dtype=torch.int32), torch.tensor([length]),
            torch.arange(1, 8)[None], torch.arange(length) + BLOCK,
        )  # fmt: skip
        output = CompiledAttention().forward(AttentionCall(query, key, value, 0.3, window), cache, metadata)
        sees = torch.zeros(length, dtype=torch.bool)
        sees[40 : None if window is None else 40 + window] = True
        finite = bad == -torch.inf  # its weight is 0
        assert torch.equal(output[:, 0].isnan().any(-1), sees & (not finite))
        if finite:
            key[40] = -1e6
            again = CompiledAttention().forward(AttentionCall(query, key, value, 0.3, window), cache, metadata)
            torch.testing.assert_close(output, again)
