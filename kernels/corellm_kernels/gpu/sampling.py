"""The next token of every row of logits: the best one, or one drawn after temperature, top-k, top-p and min-p.

Nothing is sorted. `_peaks` finds the best of each chunk of 4096 tokens, and `truncation.py` the least weight that is
kept; `_masses` sums what is kept per chunk, and `_draw` goes down to the token where the running sum passes the random
number: the cumulative distribution is inverted in the order of the vocabulary.

Bytes: the logits are read once for rows that take the best token, twice for rows that are drawn, five times with
top-k or top-p; only the first time and for the first tally all of them. 15 instructions a token find the best, which
is as fast as memory for bfloat16; 25 sum the masses.

One program per row would suffice for many rows. For few it would not: a multiprocessor takes 110 to 200 GB/s from L2,
3 microseconds for 152k bfloat16 logits if loads never waited, and nearer to 20 as they do. With a program per chunk
and one more per row, 1 to 8 rows take about 4 microseconds to find the best, 10 to draw, 25 with top-k or top-p, with
launches (estimates for an H200). Chunks do not depend on the number of rows, so neither does a row's token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2
from corellm_kernels.gpu.logits import edited
from corellm_kernels.gpu.truncation import CHUNK, floors_of, settings_of, weights_of
from corellm_kernels.logit_edits import Edits, edited_by_torch

FAILED = -1
"""In place of the token of a row that cannot be sampled."""
_BLOCK = 64
"""Tokens of a block, among which one is drawn."""


@triton.jit
def _floor(floors, min_p, row):
    """Return the least weight that is kept."""
    floor = tl.full([], 0.0, tl.float32)
    if floors is not None:
        floor = tl.load(floors + row)
    if min_p is not None:
        floor = tl.maximum(floor, tl.load(min_p + row).to(tl.float32))
    return floor


@triton.jit
def _descend(masses, target, WIDTH: tl.constexpr):
    """Return the index of the first positive mass that ends beyond the target, and the rest of the target for it.

    If rounding leaves none, return the last positive one.
    """
    masses = masses.to(tl.float64)
    ends, index, positive = tl.cumsum(masses, axis=0), tl.arange(0, WIDTH), masses > 0
    last = tl.max(tl.where(positive, index, 0), axis=0)
    found = tl.minimum(tl.min(tl.where(positive & (ends > target), index, WIDTH), axis=0), last)
    return found, target - tl.sum(tl.where(index == found, ends - masses, 0.0), axis=0)


@triton.jit
def _peaks_kernel(logits, peaks, places, stride, vocab, CHUNK: tl.constexpr):
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = split * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + columns, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    values = tl.where(values == values, values, float("inf"))
    peak = tl.max(values, axis=0)
    own = row * tl.num_programs(0) + split
    tl.store(peaks + own, peak)
    tl.store(places + own, tl.min(tl.where(values == peak, columns, vocab), axis=0))


@triton.jit
def _masses_kernel(
    logits, peaks, temperature, top_k, floors, min_p, kept, stride, vocab, num_splits,
    CHUNK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    peak, temp, _, _, drawn = settings_of(peaks, temperature, top_k, None, row, num_splits, vocab, SPLITS)
    if not drawn:
        return
    floor = _floor(floors, min_p, row)
    mass = tl.full([], 0.0, tl.float32)
    if tl.exp((tl.load(peaks + row * num_splits + split) - peak) / temp) >= floor:
        weights = weights_of(logits, row, split * CHUNK + tl.arange(0, CHUNK), stride, vocab, peak, temp)
        mass = tl.sum(tl.where(weights >= floor, weights, 0.0), axis=0)
    tl.store(kept + row * num_splits + split, mass)


@triton.jit
def _best(peaks, places, row, num_splits, SPLITS: tl.constexpr):
    """Return the first of the row's best tokens, or -1 if the row cannot be sampled."""
    splits = tl.arange(0, SPLITS)
    inside = splits < num_splits
    found = tl.load(peaks + row * num_splits + splits, mask=inside, other=float("-inf"))
    peak = tl.max(found, axis=0)
    columns = tl.load(places + row * num_splits + splits, mask=inside & (found == peak), other=0x7FFFFFFF)
    return tl.where((peak > float("-inf")) & (peak < float("inf")), tl.min(columns, axis=0), -1)


@triton.jit
def _best_kernel(peaks, places, tokens, num_splits, SPLITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(tokens + row, _best(peaks, places, row, num_splits, SPLITS))


@triton.jit
def _draw_kernel(
    logits, peaks, places, temperature, top_k, floors, min_p, kept, uniforms, tokens, stride, vocab, num_splits,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Draw a chunk, then a block of it, then a token of the block."""
    row, splits = tl.program_id(0).to(tl.int64), tl.arange(0, SPLITS)
    peak, temp, _, _, drawn = settings_of(peaks, temperature, top_k, None, row, num_splits, vocab, SPLITS)
    if not drawn:
        tl.store(tokens + row, _best(peaks, places, row, num_splits, SPLITS))
        return
    floor = _floor(floors, min_p, row)
    masses = tl.load(kept + row * num_splits + splits, mask=splits < num_splits, other=0.0)
    target = tl.load(uniforms + row).to(tl.float64) * tl.sum(masses.to(tl.float64), axis=0)
    split, target = _descend(masses, target, SPLITS)
    columns = tl.arange(0, CHUNK // BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    weights = weights_of(logits, row, split * CHUNK + columns, stride, vocab, peak, temp)
    masses = tl.sum(tl.where(weights >= floor, weights, 0.0), axis=1)
    block, target = _descend(masses, target, CHUNK // BLOCK)
    first = split * CHUNK + block * BLOCK
    weights = weights_of(logits, row, first + tl.arange(0, BLOCK), stride, vocab, peak, temp)
    token, _ = _descend(tl.where(weights >= floor, weights, 0.0), target, BLOCK)
    tl.store(tokens + row, first + token)


def sample(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    uniforms: Tensor | None = None,
    edits: Edits | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose a token per row: the best, or one drawn by inverting the cumulative distribution in vocabulary order.

    Tokens that tie with a bound of top-k, top-p or min-p are kept. Besides edits, three launches for the best tokens,
    four to draw, eight with top-k or top-p.

    Args:
        logits: `[num_rows, vocab]`, rows contiguous, any float type; minus infinity excludes a token.
        temperature: `[num_rows]`, float; 0 takes the best token, the first of several. None for all rows' best.
        top_k: `[num_rows]`, integers; 0 or at least `vocab` for all, 1 as temperature 0. None for all rows' all.
        top_p: `[num_rows]`, float32 or float64, in (0, 1]; the share of what top-k left. None for 1.
        min_p: `[num_rows]`, float, in [0, 1]; relative to the best token. None for 0.
        uniforms: `[num_rows]`, float64 in [0, 1); with a temperature.
        edits: applied to a copy first; see `logits.edited`.

    Returns:
        Tokens `[num_rows]`, int64, `FAILED` where a row holds NaN or plus infinity, or nothing above minus infinity;
        and each row's largest logit before edits `[num_rows]`, float32, plus infinity where one is NaN.
    """
    peaks, places = _peaks(logits)
    largest = peaks.amax(dim=-1)
    if edits is not None:
        logits = edited(logits, edits)
        peaks, places = _peaks(logits)
    if temperature is None:
        return _best_tokens(peaks, places), largest
    return _drawn(logits, peaks, places, temperature, top_k, top_p, min_p, uniforms), largest


def _best_tokens(peaks: Tensor, places: Tensor) -> Tensor:
    num_rows, num_splits = peaks.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=peaks.device)
    _best_kernel[(num_rows,)](peaks, places, tokens, num_splits, SPLITS=next_power_of_2(num_splits), num_warps=1)
    return tokens


def _drawn(
    logits: Tensor,
    peaks: Tensor,
    places: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    uniforms: Tensor | None,
) -> Tensor:
    """Return drawn tokens, and the best of rows of temperature 0."""
    num_rows, vocab = logits.shape
    num_splits = peaks.shape[1]
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    sizes, grid = {"SPLITS": next_power_of_2(num_splits), "num_warps": 8}, (num_splits, num_rows)
    floors = None
    if top_k is not None or top_p is not None:
        floors = floors_of(logits, peaks, temperature, top_k, top_p)
    kept = torch.empty_like(peaks)
    _masses_kernel[grid](
        logits, peaks, temperature, top_k, floors, min_p, kept, logits.stride(0), vocab, num_splits,
        CHUNK=CHUNK, **sizes,
    )  # fmt: skip
    _draw_kernel[(num_rows,)](
        logits, peaks, places, temperature, top_k, floors, min_p, kept, uniforms, tokens,
        logits.stride(0), vocab, num_splits, CHUNK=CHUNK, BLOCK=_BLOCK, **sizes,
    )  # fmt: skip
    return tokens


def _peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each chunk's largest logit and its first place, `[num_rows, num_splits]`; plus infinity for NaN."""
    num_rows, vocab = logits.shape
    num_splits = triton.cdiv(vocab, CHUNK)
    peaks = torch.empty(num_rows, num_splits, dtype=torch.float32, device=logits.device)
    places = torch.empty(num_rows, num_splits, dtype=torch.int32, device=logits.device)
    _peaks_kernel[(num_splits, num_rows)](
        logits, peaks, places, logits.stride(0), vocab, CHUNK=CHUNK, num_warps=8
    )  # fmt: skip
    return peaks, places


def sample_reference(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    uniforms: Tensor | None = None,
    edits: Edits | None = None,
) -> tuple[Tensor, Tensor]:
    """Do what `sample` does, in plain torch with sorts."""
    largest = logits.float().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(dim=-1)
    if edits is not None:
        logits = edited_by_torch(logits, edits)
    best = logits.argmax(dim=-1).where(logits.amax(dim=-1).isfinite(), FAILED)
    if temperature is None:
        return best, largest
    return _drawn_reference(logits, best, temperature, top_k, top_p, min_p, uniforms), largest


def _drawn_reference(
    logits: Tensor,
    best: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    uniforms: Tensor | None,
) -> Tensor:
    vocab = logits.shape[1]
    values = logits.float()
    drawn = (temperature > 0) & (best != FAILED)
    temp = temperature.float().where(drawn, 1.0)[:, None]
    weights = ((values - values.amax(dim=-1, keepdim=True)) / temp).exp().masked_fill(~drawn[:, None], 1.0)
    if top_k is not None:
        drawn = drawn & (top_k != 1)
        place = top_k.long().where((top_k > 0) & (top_k < vocab), vocab)[:, None] - 1
        weights = _cut(weights, weights.sort(dim=-1, descending=True).values.gather(1, place))
    if top_p is not None:
        ordered = weights.sort(dim=-1, descending=True).values
        target = top_p.double()[:, None] * weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
        short = (ordered.cumsum(dim=-1, dtype=torch.float64) < target).sum(dim=-1, keepdim=True)
        weights = _cut(weights, ordered.gather(1, short.clamp(max=vocab - 1)).masked_fill(top_p[:, None] >= 1, 0.0))
    if min_p is not None:
        weights = _cut(weights, min_p.float()[:, None])
    ends = weights.cumsum(dim=-1, dtype=torch.float64)
    index, positive = torch.arange(vocab, device=logits.device), weights > 0
    beyond = positive & (ends > uniforms[:, None] * ends[:, -1:])
    token = index.where(beyond, vocab).amin(dim=-1).minimum(index.where(positive, 0).amax(dim=-1))
    return token.where(drawn, best)


def _cut(weights: Tensor, floor: Tensor) -> Tensor:
    return weights.masked_fill(weights < floor, 0.0)
