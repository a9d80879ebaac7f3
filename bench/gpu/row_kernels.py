"""Kernels that pass over rows once, norms, activations, rotation with cache writes, merging, against their bytes.

Bytes are what must be read and written at least; over the copy's rate they give the floor. The twin's time stands
beside it: what plain torch takes for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bench.gpu.ceilings import bytes_per_second
from bench.gpu.comparing import TOLERANCES, check, poison_free_memory
from bench.gpu.paged_cache import BLOCK_SIZE
from bench.gpu.settings import Settings
from bench.gpu.timing import num_sets, timed

PART = "kernels"
_ROOM = 1.5
Make = Callable[..., Tensor]
"""Random numbers of a shape, of the inputs' type."""


@dataclass(frozen=True)
class Case:
    """A kernel in one shape."""

    name: str
    module: str
    function: str
    bytes: int
    arguments: Callable[[Make], tuple[tuple[Any, ...], dict[str, Any]]]
    """New inputs; what is written in place is among them."""
    written: Callable[[tuple[Any, ...], dict[str, Any], Any], tuple[Tensor, ...]]
    """What to compare, from the arguments and the result."""


def _result(args: tuple[Any, ...], options: dict[str, Any], result: Any) -> tuple[Tensor, ...]:
    return (result,)


def _result_and_residual(args: tuple[Any, ...], options: dict[str, Any], result: Any) -> tuple[Tensor, ...]:
    return result, options["residual"]


def _query_and_caches(args: tuple[Any, ...], options: dict[str, Any], result: Any) -> tuple[Tensor, ...]:
    """The padding of caches, which nothing writes to, is NaN on both sides and left out."""
    query, slots = args[0], args[7]
    return query, *(cache.flatten(0, 1)[slots] for cache in args[5:7])


def cases(*, quick: bool, itemsize: int) -> Iterator[Case]:
    """What is measured: rows of a decode step of one, of many, and of a step of prompts."""
    rows_of = (3,) if quick else (8, 256, 8192)
    width, inner, heads_of, size = (32, 48, ((4, 2),), 16) if quick else (4096, 11008, ((32, 32), (32, 8)), 128)
    for rows in rows_of:
        yield _norm(rows, width, itemsize)
        yield _gate(rows, inner, itemsize)
        for heads in heads_of:
            yield _rotation(rows, *heads, size, itemsize)
    rows, width, inner = (3, 24, 40) if quick else (16 * 577, 1024, 4096)
    yield Case(
        f"LayerNorm {rows} x {width}", "norms", "layer_norm", 2 * rows * width * itemsize,
        lambda make: ((make(rows, width), make(width), make(width), 1e-5), {}), _result,
    )  # fmt: skip
    yield Case(
        f"GELU {rows} x {inner}", "activations", "gelu", 2 * rows * inner * itemsize,
        lambda make: ((make(rows, inner),), {}), _result,
    )  # fmt: skip
    yield _merge(*((5, 16) if quick else (8192, 4096)), itemsize)


def _norm(rows: int, width: int, itemsize: int) -> Case:
    """With a residual, which is read and written, too."""
    return Case(
        f"RMSNorm with residual {rows} x {width}", "norms", "rms_norm", 4 * rows * width * itemsize,
        lambda make: ((make(rows, width), make(width), 1e-5), {"residual": make(rows, width)}), _result_and_residual,
    )  # fmt: skip


def _gate(rows: int, width: int, itemsize: int) -> Case:
    return Case(
        f"SiLU times gate {rows} x {width}", "activations", "silu_and_mul", 3 * rows * width * itemsize,
        lambda make: ((make(rows, 2 * width),), {}), _result,
    )  # fmt: skip


def _rotation(rows: int, heads: int, kv_heads: int, size: int, itemsize: int) -> Case:
    """Queries in place, keys and values to scattered slots; cosines and sines of every token in float32."""

    def arguments(make: Make) -> tuple[tuple[Any, ...], dict[str, Any]]:
        query, key, value = make(rows, heads, size), make(rows, kv_heads, size), make(rows, kv_heads, size)
        angles = make(rows, size).float()
        blocks = 2 * (rows // BLOCK_SIZE + 1)
        slots = torch.randperm(blocks * BLOCK_SIZE, device=query.device)[:rows]
        caches = [torch.full((blocks, BLOCK_SIZE, kv_heads, size), torch.nan).to(query) for _ in range(2)]
        return (query, key, value, angles.cos(), angles.sin(), *caches, slots), {}

    moved = rows * (2 * heads + 4 * kv_heads) * size * itemsize + 2 * rows * size * 4
    name = f"rotation and cache {rows} x {heads}/{kv_heads} heads of {size}"
    return Case(name, "rotary", "rotate_and_cache", moved, arguments, _query_and_caches)


def _merge(rows: int, width: int, itemsize: int) -> Case:
    """Two thirds of the tokens take an item's row."""

    def arguments(make: Make) -> tuple[tuple[Any, ...], dict[str, Any]]:
        takes = torch.ones(rows, dtype=torch.bool)
        takes[::3] = False
        embeds = make(rows, width)
        counts = takes.cumsum(0, dtype=torch.int32).to(embeds.device)
        return (embeds, make(int(takes.sum()), width), counts), {}

    moved = 2 * (rows - -(-rows // 3)) * width * itemsize
    return Case(f"merge {rows} x {width}", "merging", "merge_rows", moved, arguments, lambda args, *_: (args[0],))


def measure(settings: Settings) -> None:
    """Check and time every case."""
    for case in cases(quick=settings.quick, itemsize=settings.dtype.itemsize):
        if settings.seconds_left() < _ROOM:
            settings.records.note(PART, case.name, "not measured, time is up")
            continue
        with settings.records.guard(PART, case.name):
            _measure(settings, case)


def _measure(settings: Settings, case: Case) -> None:
    device = torch.device(settings.device)
    module = import_module(f"corellm_kernels.{case.module}")
    ours, twin = getattr(module, case.function), getattr(module, f"{case.function}_reference")

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(settings.dtype)

    args, options = case.arguments(make)
    error = _check(case, ours, twin, args, options, TOLERANCES[settings.dtype])
    sets = [case.arguments(make) for _ in range(num_sets(case.bytes, device, most=32))]
    timing = timed([partial(ours, *a, **o) for a, o in sets], device)
    plain = timed([partial(twin, *a, **o) for a, o in sets], device)
    floor = 1e3 * case.bytes / bytes_per_second(settings)
    settings.records.figure(PART, case.name, **timing.share_of(floor), twin_ms=plain.ms, error=error)


def _check(
    case: Case,
    ours: Callable[..., Any],
    twin: Callable[..., Any],
    args: tuple[Any, ...],
    options: dict[str, Any],
    tolerance: float,
) -> float:
    """The largest relative error of what is written."""
    copies = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)
    copied = {name: x.clone() if isinstance(x, Tensor) else x for name, x in options.items()}
    expected = case.written(copies, copied, twin(*copies, **copied))
    for tensor in expected:
        poison_free_memory(tensor)
    found = case.written(args, options, ours(*args, **options))
    errors = [check(a, b, tolerance) for a, b in zip(found, expected, strict=True)]
    return max(errors)
