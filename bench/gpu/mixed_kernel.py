"""Attention of a batch that holds decodes and a chunk of a prompt: in two launches, or otherwise.

The engine launches the kernel for decodes and then the one for chunks. Beside it stand the two side by side on streams
of their own, where the one bound by memory could run under the one bound by matrix products, and one launch of the
kernel for chunks over everything, to which a decode is a chunk of one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.gpu.comparing import TOLERANCES, check, poison
from bench.gpu.paged_cache import PagedCache
from bench.gpu.settings import Settings
from bench.gpu.timing import timed

PART = "kernels"
_SETS = 2
_ROOM = 2.0


@dataclass(frozen=True)
class Case:
    """Decodes and one chunk, all with the same context."""

    decodes: int
    new: int
    context: int
    heads: int
    kv_heads: int
    size: int

    @property
    def name(self) -> str:
        """As in records."""
        return f"mixed {self.heads}/{self.kv_heads} of {self.decodes} decodes and {self.new} new, {self.context} tokens"


def cases(*, quick: bool) -> list[Case]:
    """Few decodes and many, beside a small chunk and a large one."""
    if quick:
        return [Case(3, 8, 24, 4, 2, 16)]
    shapes = [(16, 2048, 4096), (128, 512, 4096), (128, 4096, 4096)]
    return [Case(*shape, *heads, 128) for shape in shapes for heads in ((32, 32), (32, 8))]


def measure(settings: Settings) -> None:
    """Check and time every case in every way."""
    for case in cases(quick=settings.quick):
        if settings.seconds_left() < _ROOM:
            settings.records.note(PART, case.name, "not measured, time is up")
            continue
        with settings.records.guard(PART, case.name):
            _measure(settings, case)


class _Batch:
    """One set of inputs, and the ways to attend with it.

    Args:
        case: what it holds.
        cache: of all sets.
        tables: `[decodes + 1, blocks]`.
        dtype: of queries.
    """

    def __init__(self, case: Case, cache: PagedCache, tables: Tensor, dtype: torch.dtype) -> None:
        from corellm_kernels.paged_decode import paged_decode
        from corellm_kernels.paged_prefill import paged_prefill

        device = tables.device
        shape = (case.decodes + case.new, case.heads, case.size)
        self.query = torch.randn(shape, device=device).to(dtype)
        self.out = torch.empty_like(self.query)
        lens = torch.full((case.decodes + 1,), case.context, dtype=torch.int32, device=device)
        starts = torch.tensor([*range(case.decodes + 1), len(self.query)], dtype=torch.int32, device=device)
        caches, scale, n = (cache.key, cache.value), case.size**-0.5, case.decodes
        self._decode: Callable[[], None] = partial(
            paged_decode, self.query[:n], *caches, tables[:n], lens[:n], self.out[:n], scale=scale
        )
        self._chunk: Callable[[], None] = partial(
            paged_prefill, self.query, *caches, tables[n:], lens[n:], starts[n:], self.out, scale=scale
        )
        self.together: Callable[[], None] = partial(
            paged_prefill, self.query, *caches, tables, lens, starts, self.out, scale=scale
        )

    def in_turn(self) -> None:
        """As the engine does."""
        self._decode()
        self._chunk()

    def beside(self, side: torch.cuda.Stream) -> None:
        """Decodes on another stream."""
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            self._decode()
        self._chunk()
        main.wait_stream(side)


def _measure(settings: Settings, case: Case) -> None:
    device = torch.device(settings.device)
    kind = "bf16" if settings.dtype == torch.bfloat16 else "fp32"
    num_seqs = case.decodes + 1
    cache = PagedCache(_SETS * num_seqs * -(-case.context // 16), case.kv_heads, case.size, kind, device)
    sets = [_Batch(case, cache, t, settings.dtype) for t in cache.tables(_SETS, num_seqs, case.context)]
    first = sets[0]
    first.in_turn()
    expected = first.out.clone()
    figures: dict[str, float | str] = {}
    in_turn = timed([batch.in_turn for batch in sets], device).ms
    ways = {"one_launch": [batch.together for batch in sets]}
    if settings.on_gpu:
        side = torch.cuda.Stream()
        ways["side_by_side"] = [partial(batch.beside, side) for batch in sets]
    for way, calls in ways.items():
        poison(first.out)
        calls[0]()
        check(first.out, expected, TOLERANCES[settings.dtype])
        figures[way] = in_turn / timed(calls, device).ms
    settings.records.figure(PART, case.name, ms=in_turn, **figures)
