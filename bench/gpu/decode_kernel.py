"""Paged decode attention against its floor: the bytes of the keys and values over what a copy moves per second."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bench.gpu.ceilings import bytes_per_second
from bench.gpu.comparing import TOLERANCES, check, poison
from bench.gpu.paged_cache import BLOCK_SIZE, PagedCache, bytes_per_token
from bench.gpu.settings import Settings
from bench.gpu.timing import num_sets, timed

PART = "kernels"
_ROOM = 2.0
"""Seconds that a case may take; with less left no other is begun."""


@dataclass(frozen=True)
class Case:
    """A decode step of one layer."""

    batch: int
    context: int
    heads: int
    kv_heads: int
    size: int
    cache: str

    @property
    def name(self) -> str:
        """As in records."""
        return f"decode {self.cache} {self.heads}/{self.kv_heads} batch {self.batch} context {self.context}"

    @property
    def bytes(self) -> int:
        """Keys and values, all that counts."""
        return self.batch * self.context * bytes_per_token(self.kv_heads, self.size, self.cache)


def cases(kinds: Sequence[str], *, quick: bool) -> list[Case]:
    """What is measured, those asked for first."""
    if quick:
        return [Case(2, 32, 4, 2, 16, kind) for kind in ("fp32", "int8")]
    return [
        Case(batch, context, heads, kv_heads, 128, kind)
        for kind, (heads, kv_heads), context, batch in itertools.product(
            kinds, ((32, 32), (32, 8)), (16384, 4096, 1024), (64, 8, 1, 256)
        )
    ]


def measure(settings: Settings, *kinds: str) -> None:
    """Check and time every case of some kinds of caches; those of one cache together."""
    alike = itertools.groupby(cases(kinds, quick=settings.quick), key=lambda case: (case.kv_heads, case.cache))
    for (kv_heads, kind), group in alike:
        with settings.records.guard(PART, f"decode {kind}, {kv_heads} heads in the cache"):
            _measure_all(settings, list(group))


def _measure_all(settings: Settings, alike: list[Case]) -> None:
    """Cases of the same kind of cache; it is made once, large enough for each."""
    records, device = settings.records, torch.device(settings.device)
    if settings.seconds_left() < _ROOM:
        records.note(PART, f"{alike[0].name} and {len(alike) - 1} more", "not measured, time is up")
        return
    blocks = max(_num_sets(case, device) * case.batch * -(-case.context // BLOCK_SIZE) for case in alike)
    cache = PagedCache(blocks, alike[0].kv_heads, alike[0].size, alike[0].cache, device)
    for case in alike:
        if settings.seconds_left() < _ROOM:
            records.note(PART, case.name, "not measured, time is up")
            continue
        with records.guard(PART, case.name):
            _measure(settings, case, cache)


def _num_sets(case: Case, device: torch.device) -> int:
    return num_sets(case.bytes, device)


def _measure(settings: Settings, case: Case, cache: PagedCache) -> None:
    from corellm_kernels.paged_decode import paged_decode

    device = torch.device(settings.device)
    sets = _num_sets(case, device)
    tables = cache.tables(sets, case.batch, case.context)
    queries = torch.randn(sets, case.batch, case.heads, case.size, device=device).to(settings.dtype)
    out = torch.empty_like(queries)
    options: dict[str, Any] = {"scale": case.size**-0.5, **cache.scales}
    error = _check(case, cache, queries[0], tables[0], options)
    lens = torch.full((case.batch,), case.context, dtype=torch.int64, device=device)
    calls = [
        partial(paged_decode, queries[i], cache.key, cache.value, tables[i], lens, out[i], **options)
        for i in range(sets)
    ]
    floor = 1e3 * case.bytes / bytes_per_second(settings)
    settings.records.figure(PART, case.name, **timed(calls, device).share_of(floor), error=error)


def _check(case: Case, cache: PagedCache, query: torch.Tensor, tables: torch.Tensor, options: dict[str, Any]) -> float:
    """The relative error of a few sequences of a batch whose lengths differ; all of it must have been written."""
    from corellm_kernels.paged_decode import paged_decode, paged_decode_reference

    shorter = torch.randint(0, case.context // 2, (case.batch,), device=query.device)
    lens = case.context - shorter
    lens[-1] = case.context
    out, expected = torch.empty_like(query), torch.empty_like(query, dtype=torch.float32)
    poison(out, expected)
    paged_decode(query, cache.key, cache.value, tables, lens, out, **options)
    if not out.isfinite().all():
        raise ArithmeticError("some of the output was not written, or is not finite")
    rows = sorted({0, case.batch // 2, case.batch - 1})
    some = torch.tensor(rows, device=query.device)
    paged_decode_reference(
        query[some], cache.key, cache.value, tables[some], lens[some], expected[: len(rows)], **options
    )
    return check(out[some], expected[: len(rows)], TOLERANCES[query.dtype])
