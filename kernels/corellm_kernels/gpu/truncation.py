"""Finds the least weight that top-k and top-p keep of a row of logits, without sorting.

A token's weight is `exp((logit - peak) / temperature)`, 1 for the best. Both truncations are lower bounds on the
weight, and as the bits of positive floats are ordered as the floats are, a bound is searched among bits:

1. `_tally`, twice: how many tokens, and what mass, are at or above 8 pivots. The first time they are four octaves
   apart (the lowest 24 octaves down), the second time they divide the interval that was found: 4/7 octave is left.
2. `_collect`: the weights in that interval become a list, of 16384 at most; with both bounds, all from its lower end.
3. `_resolve`: bisection over the list, to the bit; every step ends on a weight that exists, so there are few. A list
   that would be too long is not made: the row is read instead, for about 30 microseconds a step.

Bytes: three times the logits, but the second tally and the list leave out chunks whose best token is below what is
searched, which for peaked distributions are most. A tally takes about 60 instructions a token, 3 for a pivot: on an
H200 some 80 microseconds for 256 rows of 152k, where reading them as bfloat16 takes 20. A row's list takes 64 KB.

One program per row would take 40 microseconds for a tally of 152k; there is one per chunk of 4096 tokens, and up to 8
rows a tally takes 2 to 4 with its launch, and the four launches 10 to 15 (estimates). What a program needs of the
others it sums itself, always in the same order: a row's bound does not depend on the rows beside it.

Selection by pivots: Alabi, Blanchard, Gordon and Steinbach 2012, Fast k-selection algorithms for graphics processing
units; for top-p too, with duplicates in mind: Park et al. 2026, arXiv 2602.01518.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.gpu.launch import next_power_of_2

CHUNK = 4096
"""Tokens per program."""
_PIVOTS = 8
_CAPACITY = 16384
_LEAST_SPLITS = 64
"""Least number of chunks to sum over: sums over fewer stay within a warp, see `_shared`."""
_ONE = tl.constexpr(0x3F800000)
"""The bits of 1.0, the largest weight."""
_FOUR_OCTAVES = tl.constexpr(4 << 23)


@triton.jit
def weights_of(logits, row, columns, stride, vocab, peak, temp):
    """Return weights of columns, 0 beyond the vocabulary; shared by all passes, so that they see the same bits."""
    values = tl.load(logits + row * stride + columns, mask=columns < vocab, other=float("-inf"))
    return tl.exp((values.to(tl.float32) - peak) / temp)


@triton.jit
def settings_of(peaks, temperature, top_k, top_p, row, num_splits, vocab, SPLITS: tl.constexpr):
    """Return a row's largest logit, temperature, k (`vocab` for all), share of the mass, and whether it is drawn."""
    splits = tl.arange(0, SPLITS)
    peak = tl.max(tl.load(peaks + row * num_splits + splits, mask=splits < num_splits, other=float("-inf")), axis=0)
    temp = tl.load(temperature + row).to(tl.float32)
    k = vocab
    if top_k is not None:
        k = tl.minimum(tl.load(top_k + row), vocab).to(tl.int32)
        k = tl.where(k > 0, k, vocab)
    share = tl.full([], 1.0, tl.float64)
    if top_p is not None:
        share = tl.load(top_p + row).to(tl.float64)
    drawn = (temp > 0) & (k != 1) & (peak > float("-inf")) & (peak < float("inf"))
    return peak, temp, k, share, drawn


@triton.jit
def _shared(flag):
    """Return the flag, computed so that the assembler sees that all threads have the same.

    Shuffles after a branch are otherwise prepared for threads that went elsewhere, which takes 175 registers for 48.
    """
    return tl.max(tl.zeros([32], tl.int32) + flag.to(tl.int32), axis=0) > 0


@triton.jit
def _pivots(low, start, step, high, index):
    """Return pivots: the first at `low`, the others from `start` on, the last at `high`."""
    return tl.where(index == 0, low, tl.minimum(index * step + start, high))


@triton.jit
def _bracket(
    counts, masses, row, k, share, vocab, num_splits,
    TALLIES: tl.constexpr, PIVOTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Return what is known of a row's bound (of top-k, or without it of top-p) after a number of tallies.

    Returns bits `low` and `high`: enough tokens (enough mass) are at or above the first, not at or above the second;
    where the next tally's pivots start, and their step; `low`'s index among the last one's; the mass top-p wants.
    """
    index, splits = tl.arange(0, PIVOTS), tl.arange(0, SPLITS)
    low, high, step = 1, _ONE + 1, _FOUR_OCTAVES
    start, place, wanted = high - (PIVOTS - 1) * step, 0, share
    for tally in tl.static_range(TALLIES):
        tile = ((row * 2 + tally) * num_splits + splits[:, None]) * PIVOTS + index[None, :]
        inside = (splits[:, None] < num_splits) & (index[None, :] < PIVOTS)
        count = tl.sum(tl.load(counts + tile, mask=inside, other=0), axis=0)
        mass = tl.sum(tl.load(masses + tile, mask=inside, other=0.0).to(tl.float64), axis=0)
        if tally == 0:
            wanted = share * tl.max(mass, axis=0)
        enough = tl.where(k < vocab, count >= k, mass >= wanted)
        place = tl.minimum(tl.maximum(tl.sum(enough.to(tl.int32), axis=0) - 1, 0), PIVOTS - 2)
        pivots = _pivots(low, start, step, high, index)
        low = tl.sum(tl.where(index == place, pivots, 0), axis=0)
        high = tl.sum(tl.where(index == place + 1, pivots, 0), axis=0)
        start, step = low, tl.cdiv(high - low, PIVOTS - 1)
    return low, high, start, step, place, wanted


@triton.jit
def _at_pivot(tallies, row, place, num_splits, PIVOTS: tl.constexpr, SPLITS: tl.constexpr):
    """Return the second tally at one of its pivots, per chunk: `[SPLITS]`."""
    splits = tl.arange(0, SPLITS)
    own = ((row * 2 + 1) * num_splits + splits) * PIVOTS + place
    return tl.load(tallies + own, mask=splits < num_splits, other=0)


@triton.jit
def _examine(
    candidates, size, listed, logits, row, stride, vocab, peak, temp, by_count, low, middle, limit,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return number or mass of the weights in `[middle, limit)`, the least of them, the largest in `[low, middle)`.

    Where there is none: `limit`, `low`.
    """
    total, least, most = tl.full([], 0.0, tl.float64), limit, low
    for start in range(0, tl.where(listed, size, vocab), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        if listed:
            weights = tl.load(candidates + row * CAPACITY + columns, mask=columns < size, other=0.0)
        else:
            weights = weights_of(logits, row, columns, stride, vocab, peak, temp)
        bits = weights.to(tl.int32, bitcast=True)
        within = (bits >= middle) & (bits < limit)
        total += tl.sum(tl.where(within, tl.where(by_count, 1.0, weights), 0.0), axis=0).to(tl.float64)
        least = tl.minimum(least, tl.min(tl.where(within, bits, limit), axis=0))
        most = tl.maximum(most, tl.max(tl.where((bits >= low) & (bits < middle), bits, low), axis=0))
    return total, least, most


@triton.jit
def _search(
    candidates, size, listed, logits, row, stride, vocab, peak, temp, by_count, low, high, limit, beyond, wanted,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the largest weight (as bits) from which on there is enough, between `low`, where there is, and `high`.

    `beyond` is what there is from `limit` on. Either end moves to a weight that exists, or next to one.
    """
    while high - low > 1:
        middle = low + (high - low) // 2
        total, least, most = _examine(
            candidates, size, listed, logits, row, stride, vocab, peak, temp, by_count, low, middle, limit,
            CAPACITY, BLOCK,
        )  # fmt: skip
        enough = beyond + total >= wanted
        low = tl.where(enough, tl.minimum(least, high - 1), low)
        high = tl.where(enough, high, most + 1)
    return low


@triton.jit
def _tally_kernel(
    logits, peaks, temperature, top_k, top_p, counts, masses, stride, vocab, num_splits,
    TALLY: tl.constexpr, CHUNK: tl.constexpr, PIVOTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    peak, temp, k, share, drawn = settings_of(peaks, temperature, top_k, top_p, row, num_splits, vocab, SPLITS)
    if not _shared(drawn & ((k < vocab) | (share < 1))):
        return
    low, high, start, step, _, _ = _bracket(
        counts, masses, row, k, share, vocab, num_splits, TALLY, PIVOTS, SPLITS
    )  # fmt: skip
    own = ((row * 2 + TALLY) * num_splits + split) * PIVOTS + tl.arange(0, PIVOTS)
    best = tl.exp((tl.load(peaks + row * num_splits + split) - peak) / temp)
    if _shared((TALLY > 0) & (best.to(tl.int32, bitcast=True) < low)):
        tl.store(counts + own, 0)
        tl.store(masses + own, 0.0)
        return
    weights = weights_of(logits, row, split * CHUNK + tl.arange(0, CHUNK), stride, vocab, peak, temp)[None, :]
    pivots = _pivots(low, start, step, high, tl.arange(0, PIVOTS)).to(tl.float32, bitcast=True)
    above = (weights >= pivots[:, None]).to(tl.float32)
    tl.store(counts + own, tl.sum(above, axis=1).to(tl.int32))
    tl.store(masses + own, tl.sum(above * weights, axis=1))


@triton.jit
def _collect_kernel(
    logits, peaks, temperature, top_k, top_p, counts, masses, candidates, stride, vocab, num_splits,
    CHUNK: tl.constexpr, CAPACITY: tl.constexpr, PIVOTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    peak, temp, k, share, drawn = settings_of(peaks, temperature, top_k, top_p, row, num_splits, vocab, SPLITS)
    if not (drawn & ((k < vocab) | (share < 1))):
        return
    low, high, _, _, place, _ = _bracket(counts, masses, row, k, share, vocab, num_splits, 2, PIVOTS, SPLITS)
    both = (k < vocab) & (share < 1)
    limit = tl.where(both, _ONE + 1, high)
    sizes = _at_pivot(counts, row, place, num_splits, PIVOTS, SPLITS)
    sizes -= tl.where(both, 0, _at_pivot(counts, row, place + 1, num_splits, PIVOTS, SPLITS))
    splits = tl.arange(0, SPLITS)
    if (tl.sum(sizes, axis=0) > CAPACITY) | (tl.sum(tl.where(splits == split, sizes, 0), axis=0) == 0):
        return
    weights = weights_of(logits, row, split * CHUNK + tl.arange(0, CHUNK), stride, vocab, peak, temp)
    bits = weights.to(tl.int32, bitcast=True)
    within = (bits >= low) & (bits < limit)
    first = tl.sum(tl.where(splits < split, sizes, 0), axis=0)
    places = first + tl.cumsum(within.to(tl.int32), axis=0) - 1
    tl.store(candidates + row * CAPACITY + places, weights, mask=within)


@triton.jit
def _resolve_kernel(
    logits, peaks, temperature, top_k, top_p, counts, masses, candidates, floors, stride, vocab, num_splits,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    peak, temp, k, share, drawn = settings_of(peaks, temperature, top_k, top_p, row, num_splits, vocab, SPLITS)
    if not (drawn & ((k < vocab) | (share < 1))):
        tl.store(floors + row, 0.0)
        return
    low, high, _, _, place, wanted = _bracket(counts, masses, row, k, share, vocab, num_splits, 2, PIVOTS, SPLITS)
    by_count, both = k < vocab, (k < vocab) & (share < 1)
    size = tl.sum(_at_pivot(counts, row, place, num_splits, PIVOTS, SPLITS), axis=0)
    count = tl.sum(_at_pivot(counts, row, place + 1, num_splits, PIVOTS, SPLITS), axis=0)
    mass = tl.sum(_at_pivot(masses, row, place + 1, num_splits, PIVOTS, SPLITS).to(tl.float64), axis=0)
    limit = tl.where(both, _ONE + 1, high)
    beyond = tl.where(both, 0.0, tl.where(by_count, count.to(tl.float64), mass))
    size -= tl.where(both, 0, count)
    listed = size <= CAPACITY
    floor = _search(
        candidates, size, listed, logits, row, stride, vocab, peak, temp, by_count, low, high, limit, beyond,
        tl.where(by_count, k.to(tl.float64), wanted), CAPACITY, BLOCK,
    )  # fmt: skip
    if both:
        mass = _examine(
            candidates, size, listed, logits, row, stride, vocab, peak, temp, False, floor, floor, limit,
            CAPACITY, BLOCK,
        )[0]  # fmt: skip
        floor = _search(
            candidates, size, listed, logits, row, stride, vocab, peak, temp, False, floor, limit, limit, beyond,
            share * mass, CAPACITY, BLOCK,
        )  # fmt: skip
    tl.store(floors + row, floor.to(tl.float32, bitcast=True))


def floors_of(logits: Tensor, peaks: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Return the least weight `[num_rows]` that top-k and top-p keep."""
    num_rows, num_splits = peaks.shape
    grid, vocab = (num_splits, num_rows), logits.shape[1]
    counts = torch.empty(num_rows, 2, num_splits, _PIVOTS, dtype=torch.int32, device=logits.device)
    masses = torch.empty_like(counts, dtype=torch.float32)
    capacity = min(_CAPACITY, vocab)
    candidates = torch.empty(num_rows, capacity, dtype=torch.float32, device=logits.device)
    floors = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    row = (logits, peaks, temperature, top_k, top_p, counts, masses)
    shape = (logits.stride(0), vocab, num_splits)
    sizes = {"PIVOTS": _PIVOTS, "SPLITS": max(_LEAST_SPLITS, next_power_of_2(num_splits))}
    for tally in range(2):
        _tally_kernel[grid](*row, *shape, TALLY=tally, CHUNK=CHUNK, **sizes, num_warps=8)
    sizes |= {"CAPACITY": capacity, "num_warps": 16}
    _collect_kernel[grid](*row, candidates, *shape, CHUNK=CHUNK, **sizes)
    _resolve_kernel[(num_rows,)](*row, candidates, floors, *shape, BLOCK=CHUNK, **sizes)
    return floors
