"""Changes to a few logits of each row before a token is sampled: penalties, biases, forbidden and allowed tokens.

What a row's tokens are comes as flat lists: row `r` has the entries `offsets[r]` to `offsets[r + 1]`. One program per
row reads 8 to 12 bytes an entry, and reads and writes 4 bytes of logits, at random places; a row without entries costs
nothing, and the lists may be longer than what the offsets name, so that a captured graph can be run with other lists.
Allowed tokens come as bits, an eighth of a byte a token: only what is forbidden is written.

A logit that is NaN or plus infinity stays one, so that sampling reports the row.

Repetition penalty: Keskar et al. 2019, arXiv 1909.05858; frequency and presence penalty as OpenAI's API defines them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def _entries(token_ids, offsets, row, first, vocab, BLOCK: tl.constexpr):
    """Places of some of a row's entries, their tokens, and which of them are there."""
    places = first + tl.arange(0, BLOCK)
    inside = places < tl.load(offsets + row + 1)
    tokens = tl.load(token_ids + places, mask=inside, other=-1)
    return places, tokens, inside & (tokens >= 0) & (tokens < vocab)


@triton.jit
def _penalize_kernel(
    logits, token_ids, counts, offsets, repetition, frequency, presence, stride, vocab, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    repeated, frequent, present = tl.load(repetition + row), tl.load(frequency + row), tl.load(presence + row)
    for first in range(tl.load(offsets + row), tl.load(offsets + row + 1), BLOCK):
        places, tokens, inside = _entries(token_ids, offsets, row, first, vocab, BLOCK)
        before = tl.load(logits + row * stride + tokens, mask=inside, other=0.0)
        count = tl.load(counts + places, mask=inside, other=0.0).to(tl.float32)
        after = tl.where(before > 0, tl.div_rn(before, repeated), before * repeated)
        after -= frequent * count + tl.where(count > 0, present, 0.0)
        # A tiny repetition penalty must not overflow to infinity, which no distribution survives.
        after = tl.where((after > _LARGEST) & (before <= _LARGEST), _LARGEST, after)
        tl.store(logits + row * stride + tokens, after, mask=inside)


@triton.jit
def _add_kernel(logits, token_ids, values, offsets, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for first in range(tl.load(offsets + row), tl.load(offsets + row + 1), BLOCK):
        places, tokens, inside = _entries(token_ids, offsets, row, first, vocab, BLOCK)
        added = tl.load(values + places, mask=inside, other=0.0)
        tl.atomic_add(logits + row * stride + tokens, added, mask=inside, sem="relaxed")


@triton.jit
def _restrict_kernel(logits, allowed, rows, stride, vocab, num_words, BLOCK: tl.constexpr):
    mask = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + mask).to(tl.int64)
    if row < 0:
        return
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(allowed + mask * num_words + tokens // 32, mask=tokens < vocab, other=-1)
    forbidden = ((words >> (tokens % 32)) & 1) == 0
    values = tl.load(logits + row * stride + tokens, mask=forbidden, other=float("inf"))
    tl.store(logits + row * stride + tokens, float("-inf"), mask=forbidden & (values < float("inf")))


def penalize(
    logits: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    offsets: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """Apply the repetition penalty to the tokens a row has seen, then frequency and presence penalty, in place.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        token_ids: `[num_entries]`, integers, distinct within a row; ids outside the vocabulary are ignored.
        counts: `[num_entries]`, how often each was generated (0: it was in the prompt only).
        offsets: `[num_rows + 1]`, integers.
        repetition, frequency, presence: `[num_rows]`, float32.
    """
    if len(logits):
        _penalize_kernel[(len(logits),)](
            logits, token_ids, counts, offsets, repetition, frequency, presence,
            logits.stride(0), logits.shape[1], BLOCK=_BLOCK,
        )  # fmt: skip


def add(logits: Tensor, token_ids: Tensor, values: Tensor, offsets: Tensor) -> None:
    """Add to single logits, in place; minus infinity forbids a token. A token may occur more than once in a row.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        token_ids: `[num_entries]`, integers; ids outside the vocabulary are ignored.
        values: `[num_entries]`, float32. Three finite numbers for one place are summed in any order.
        offsets: `[num_rows + 1]`, integers.
    """
    if len(logits):
        _add_kernel[(len(logits),)](
            logits, token_ids, values, offsets, logits.stride(0), logits.shape[1], BLOCK=_BLOCK
        )  # fmt: skip


def restrict(logits: Tensor, allowed: Tensor, rows: Tensor) -> None:
    """Set the logits of tokens that are not allowed to minus infinity, in place.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        allowed: `[num_masks, ceil(vocab / 32)]`, int32, contiguous: `allowed_bits` of each restricted row.
        rows: `[num_masks]`, integers: which row a mask is for; -1 for none.
    """
    if len(rows):
        vocab = logits.shape[1]
        _restrict_kernel[(triton.cdiv(vocab, 2 * _BLOCK), len(rows))](
            logits, allowed, rows, logits.stride(0), vocab, allowed.shape[1], BLOCK=2 * _BLOCK
        )  # fmt: skip


def allowed_bits(token_ids: Tensor, vocab: int) -> Tensor:
    """`[ceil(vocab / 32)]`, int32: bit `t % 32` of word `t // 32` is set for each of the tokens, which are in reach."""
    bits = torch.zeros(-(-vocab // 32) * 32, dtype=torch.int32, device=token_ids.device)
    bits[token_ids] = 1
    shifts = torch.arange(32, dtype=torch.int32, device=token_ids.device)
    return (bits.view(-1, 32) << shifts).sum(dim=-1, dtype=torch.int32)


def penalize_reference(
    logits: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    offsets: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    """As `penalize`."""
    places, rows, ids = _flat(logits, token_ids, offsets)
    before, count = logits[rows, ids], counts[places].float()
    after = torch.where(before > 0, before / repetition[rows], before * repetition[rows])
    after -= frequency[rows] * count + presence[rows] * (count > 0)
    logits[rows, ids] = after.clamp(max=torch.finfo(torch.float32).max).where(before < torch.inf, before)


def add_reference(logits: Tensor, token_ids: Tensor, values: Tensor, offsets: Tensor) -> None:
    """As `add`."""
    places, rows, ids = _flat(logits, token_ids, offsets)
    logits.index_put_((rows, ids), values[places], accumulate=True)


def restrict_reference(logits: Tensor, allowed: Tensor, rows: Tensor) -> None:
    """As `restrict`."""
    for mask, row in zip(allowed, rows.tolist(), strict=True):
        if row >= 0:
            shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
            bits = ((mask[:, None] >> shifts) & 1).flatten()[: logits.shape[1]]
            logits[row].masked_fill_((bits == 0) & (logits[row] < torch.inf), -torch.inf)


def _flat(logits: Tensor, token_ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries that count: their places in the lists, rows and tokens."""
    index = torch.arange(int(offsets[0]), int(offsets[-1]), device=logits.device)
    rows = torch.repeat_interleave(torch.arange(len(logits), device=logits.device), offsets.diff())
    ids = token_ids[index].long()
    inside = (ids >= 0) & (ids < logits.shape[1])
    return index[inside], rows[inside], ids[inside]
