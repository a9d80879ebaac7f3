"""Changes to a few logits of each row before a token is sampled: penalties, biases, forbidden and allowed tokens.

What a row's tokens are comes as flat lists: row `r` has the entries `offsets[r]` to `offsets[r + 1]`. One program per
row reads 8 to 12 bytes an entry, and reads and writes 4 bytes of logits, at random places; a row without entries costs
nothing. Allowed tokens come as a bit each; only what is forbidden is read and written.

A logit that is NaN or plus infinity stays one, so that sampling reports the row.

Repetition penalty: Keskar et al. 2019, arXiv 1909.05858; frequency and presence penalty as OpenAI's API defines them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from corellm_kernels.logit_edits import Edits, Entries

_BLOCK = 1024
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def _entries(token_ids, offsets, row, first, vocab, BLOCK: tl.constexpr):
    """Return places of some of a row's entries, their tokens, and which of them exist."""
    places = first + tl.arange(0, BLOCK)
    inside = places < tl.load(offsets + row + 1)
    tokens = tl.load(token_ids + places, mask=inside, other=-1)
    return places, tokens, inside & (tokens >= 0) & (tokens < vocab)


@triton.jit
def _penalize_kernel(logits, token_ids, counts, offsets, penalties, stride, vocab, BLOCK: tl.constexpr):
    row, num_rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    repeated = tl.load(penalties + row)
    frequent, present = tl.load(penalties + num_rows + row), tl.load(penalties + 2 * num_rows + row)
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
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(allowed + mask * num_words + tokens // 32, mask=tokens < vocab, other=-1)
    forbidden = ((words >> (tokens % 32)) & 1) == 0
    values = tl.load(logits + row * stride + tokens, mask=forbidden, other=float("inf"))
    tl.store(logits + row * stride + tokens, float("-inf"), mask=forbidden & (values < float("inf")))


def edited(logits: Tensor, edits: Edits) -> Tensor:
    """Return a changed copy in float32; each kind of change is one launch.

    Args:
        logits: `[num_rows, vocab]`, any float type.
        edits: of these rows.
    """
    result = logits.to(torch.float32, copy=True)
    if edits.allowed is not None:
        restrict(result, edits.allowed, edits.allowed_rows)
    if edits.added is not None:
        add(result, edits.added)
    if edits.seen is not None:
        penalize(result, edits.seen, edits.penalties)
    return result


def restrict(logits: Tensor, allowed: Tensor, rows: Tensor) -> None:
    """Set the logits of tokens that are not allowed to minus infinity, in place.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        allowed: `[num_masks, ceil(vocab / 32)]`, int32, contiguous; token `t` is bit `t % 32` of word `t // 32`.
        rows: `[num_masks]`, integers: which row a mask is for.
    """
    vocab = logits.shape[1]
    _restrict_kernel[(triton.cdiv(vocab, 2 * _BLOCK), len(rows))](
        logits, allowed, rows, logits.stride(0), vocab, allowed.shape[1], BLOCK=2 * _BLOCK
    )


def add(logits: Tensor, added: Entries) -> None:
    """Add to single logits, in place; minus infinity forbids a token. A token may occur more than once in a row.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        added: ids outside the vocabulary are ignored. Three finite numbers for one place are summed in any order.
    """
    _add_kernel[(len(logits),)](
        logits, added.token_ids, added.values, added.offsets, logits.stride(0), logits.shape[1], BLOCK=_BLOCK
    )  # fmt: skip


def penalize(logits: Tensor, seen: Entries, penalties: Tensor) -> None:
    """Apply the repetition penalty to the tokens a row has seen, then frequency and presence penalty, in place.

    Args:
        logits: `[num_rows, vocab]`, float32, rows contiguous.
        seen: distinct tokens of a row, ids outside the vocabulary are ignored; with how often each was generated (0: it
            was in the prompt only).
        penalties: `[3, num_rows]`, float32, contiguous: repetition, frequency, presence.
    """
    _penalize_kernel[(len(logits),)](
        logits, seen.token_ids, seen.values, seen.offsets, penalties,
        logits.stride(0), logits.shape[1], BLOCK=_BLOCK,
    )  # fmt: skip
