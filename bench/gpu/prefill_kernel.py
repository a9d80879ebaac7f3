"""Paged prefill attention against flash attention as torch has it, on the same keys and values laid out in a row.

Both in one run, on the same inputs: the ratio is theirs over ours, above 1 where ours is faster. Keys and values of
grouped heads are given to torch both as they are and repeated; the faster one counts. cuDNN's attention, where torch
offers it, stands beside it for what the GPU could do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from bench.gpu.comparing import TOLERANCES, check, poison
from bench.gpu.paged_cache import PagedCache
from bench.gpu.settings import Settings
from bench.gpu.timing import timed

PART = "kernels"
_SETS = 3
_ROOM = 3.0
_CHECKED = 64
"""Queries that are compared at a time: the twin holds all their scores."""


@dataclass(frozen=True)
class Case:
    """A prompt's chunk in one layer, several of the same length side by side."""

    num_seqs: int
    new: int
    prefix: int
    heads: int
    kv_heads: int
    size: int

    @property
    def name(self) -> str:
        """As in records."""
        before = f" after {self.prefix}" if self.prefix else ""
        several = f"{self.num_seqs} x " if self.num_seqs > 1 else ""
        return f"prefill {self.heads}/{self.kv_heads} of {several}{self.new}{before}"

    @property
    def flops(self) -> int:
        """Two products for each pair of a query and a token it sees."""
        pairs = self.new * self.prefix + self.new * (self.new + 1) // 2
        return 4 * self.num_seqs * self.heads * self.size * pairs


@dataclass(frozen=True)
class Inputs:
    """One set: paged, and the same in a row."""

    query: Tensor
    """`[num_seqs * new, heads, size]`."""
    tables: Tensor
    out: Tensor
    rows: tuple[Tensor, Tensor, Tensor]
    """Queries, keys and values, `[num_seqs, heads or kv_heads, tokens, size]`, contiguous."""


def cases(*, quick: bool) -> list[Case]:
    """What is measured, those asked for first."""
    if quick:
        return [Case(1, 24, 0, 4, 2, 16), Case(2, 8, 16, 2, 2, 16)]
    shapes = [(1, 4096, 0), (1, 8192, 0), (1, 16384, 0), (1, 4096, 12288), (1, 2048, 14336), (8, 1024, 0)]
    return [Case(*shape, *heads, 128) for shape in shapes for heads in ((32, 32), (32, 8))]


def measure(settings: Settings) -> None:
    """Check and time every case."""
    for case in cases(quick=settings.quick):
        if settings.seconds_left() < _ROOM:
            settings.records.note(PART, case.name, "not measured, time is up")
            continue
        with settings.records.guard(PART, case.name):
            _measure(settings, case)


def _measure(settings: Settings, case: Case) -> None:
    from corellm_kernels.paged_prefill import paged_prefill

    device = torch.device(settings.device)
    context = case.prefix + case.new
    kind = "bf16" if settings.dtype == torch.bfloat16 else "fp32"
    cache = PagedCache(_SETS * case.num_seqs * -(-context // 16), case.kv_heads, case.size, kind, device)
    sets = _make_sets(case, cache, settings.dtype)
    lens = torch.full((case.num_seqs,), context, dtype=torch.int64, device=device)
    starts = torch.arange(case.num_seqs + 1, dtype=torch.int32, device=device) * case.new
    scale = case.size**-0.5

    def ours(inputs: Inputs) -> None:
        paged_prefill(
            inputs.query, cache.key, cache.value, inputs.tables, lens, starts, inputs.out, scale=scale
        )  # fmt: skip

    error = _check(case, cache, sets[0], ours, scale)
    ms = timed([partial(ours, inputs) for inputs in sets], device).ms
    flash, how = _torch(settings, SDPBackend.FLASH_ATTENTION if settings.on_gpu else SDPBackend.MATH, case, sets)
    figures: dict[str, float | str] = {"ms": ms, "tflop_per_s": case.flops / ms / 1e9, "error": error}
    if flash is not None:
        figures |= {"flash_ms": flash, "flash_tflop_per_s": case.flops / flash / 1e9, "ratio": flash / ms, "flash": how}
    cudnn, _ = _torch(settings, SDPBackend.CUDNN_ATTENTION, case, sets) if settings.on_gpu else (None, "")
    if cudnn is not None:
        figures["cudnn_ratio"] = cudnn / ms
    settings.records.figure(PART, case.name, **figures)
    if flash is None:
        raise RuntimeError(f"torch has no flash attention for this: {how}")


def _make_sets(case: Case, cache: PagedCache, dtype: torch.dtype) -> list[Inputs]:
    context = case.prefix + case.new
    sets = []
    for tables in cache.tables(_SETS, case.num_seqs, context):
        query = torch.randn(case.num_seqs, case.new, case.heads, case.size, device=cache.key.device).to(dtype)
        keys, values = (
            side[tables].flatten(1, 2)[:, :context].transpose(1, 2).contiguous() for side in (cache.key, cache.value)
        )
        flat = query.flatten(0, 1)
        rows = (query.transpose(1, 2).contiguous(), keys, values)
        sets.append(Inputs(flat, tables, torch.empty_like(flat), rows))
    return sets


def _check(case: Case, cache: PagedCache, inputs: Inputs, ours: Callable[[Inputs], None], scale: float) -> float:
    """The largest relative error of a few stretches of the last sequence; all of the output must have been written."""
    from corellm_kernels.paged_prefill import paged_prefill_reference

    poison(inputs.out)
    ours(inputs)
    if not inputs.out.isfinite().all():
        raise ArithmeticError("some of the output was not written, or is not finite")
    first = (case.num_seqs - 1) * case.new
    errors = []
    for begin in sorted({0, case.new // 2, max(0, case.new - _CHECKED)}):
        end = min(begin + _CHECKED, case.new)
        part = slice(first + begin, first + end)
        expected = torch.empty_like(inputs.query[part], dtype=torch.float32)
        lens = torch.tensor([case.prefix + end], device=expected.device)
        starts = torch.tensor([0, end - begin], dtype=torch.int32, device=expected.device)
        paged_prefill_reference(
            inputs.query[part], cache.key, cache.value, inputs.tables[-1:], lens, starts, expected, scale=scale
        )
        errors.append(check(inputs.out[part], expected, TOLERANCES[inputs.query.dtype]))
    return max(errors)


# --- torch ------------------------------------------------------------------------------------------------------------


def _torch(settings: Settings, backend: SDPBackend, case: Case, sets: list[Inputs]) -> tuple[float | None, str]:
    """Milliseconds of a backend and how keys and values were given to it; or None, and what it said."""
    device = torch.device(settings.device)
    found: dict[str, float] = {}
    said = ""
    for how in ("as they are", "repeated"):
        if how == "repeated" and case.heads == case.kv_heads:
            continue
        try:
            calls = [partial(_attend, case, *_given(case, inputs, how)) for inputs in sets]
            with sdpa_kernel(backend):
                found[how] = timed(calls, device).ms
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
    if not found:
        return None, said
    how = min(found, key=found.__getitem__)
    return found[how], how


def _given(case: Case, inputs: Inputs, how: str) -> tuple[Tensor, Tensor, Tensor]:
    query, keys, values = inputs.rows
    if how == "as they are":
        return query, keys, values
    times = case.heads // case.kv_heads
    return query, keys.repeat_interleave(times, dim=1), values.repeat_interleave(times, dim=1)


def _attend(case: Case, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    grouped = keys.shape[1] != query.shape[1]
    if not case.prefix:
        return functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=grouped)
    bias = causal_lower_right(case.new, case.prefix + case.new)
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=grouped)
