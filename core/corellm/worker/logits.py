"""From raw logits to the weights tokens are drawn with: masks, biases and penalties, then temperature and truncation.

Knows how each sampling parameter changes a distribution; does not know how a token is drawn, nor what happens to it.
Work is done on whole batches; a sequence's own tokens enter as flat `(row, token)` index lists, so that a row costs
what it asks for. All functions want float32 logits that they may overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from corellm.worker.sampling_state import Ids, SamplingState, Values

_NUCLEUS_WIDTHS = (128, 2048)
"""How many of the best tokens top-p looks at before it sorts the vocabulary (on CPU a sort takes 20 times longer)."""


def edit_logits(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Apply allowed tokens, bad words, `min_tokens`, `logit_bias` and the penalties, in place.

    Args:
        logits: `[num_seqs, vocab]`, float32; overwritten.
        states: one per row; rows whose `edits_logits` is false are left as they are.
    """
    _keep_allowed(logits, states)
    _add(logits, states)
    _penalise(logits, states)


def token_weights(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Apply temperature, top-k, top-p and min-p: the unnormalised probabilities to draw from.

    The most likely token has weight 1, so no exponential overflows; and each truncation is a lower bound on the
    weight: the k-th largest, the least one in the nucleus, `min_p` itself. Tokens that tie with a bound are kept,
    whichever of them a sort would have put first, so a row's result does not depend on its neighbours.

    Args:
        logits: `[num_seqs, vocab]`, float32, with at least one finite value per row; overwritten.
        states: one per row, temperature above 0.

    Returns:
        Weights `[num_seqs, vocab]`, 0 for the tokens that were cut off.
    """
    temperature = _column([s.params.temperature for s in states], logits)
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperature).exp_()

    vocab_size = weights.shape[1]
    lower = weights.new_zeros(len(states), 1)
    rows = [row for row, s in enumerate(states) if 0 < s.params.top_k < vocab_size]
    if rows:
        lower[rows] = _kth_largest(_take(weights, rows), [states[row].params.top_k for row in rows])
    rows = [row for row, s in enumerate(states) if s.params.top_p < 1.0]
    if rows:
        lower[rows] = _nucleus_floor(_take(weights, rows), lower[rows], [states[row].params.top_p for row in rows])
    if any(s.params.min_p > 0.0 for s in states):
        lower = lower.maximum(_column([s.params.min_p for s in states], logits))
    elif not lower.any():
        return weights
    return weights.masked_fill_(weights < lower, 0.0)


def _keep_allowed(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    found = [(row, s.allowed) for row, s in enumerate(states) if s.allowed is not None]
    if not found:
        return
    rows = torch.tensor([row for row, _ in found], device=logits.device)
    index = (torch.cat([torch.full_like(ids, row) for row, ids in found]), torch.cat([ids for _, ids in found]))
    kept = logits[index]
    logits.index_fill_(0, rows, -torch.inf)
    logits[index] = kept


def _add(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    found = [(row, *addition) for row, s in enumerate(states) for addition in s.additions()]
    if found:
        rows, ids, values = _flat(found, logits.device)
        logits.index_put_((rows, ids), values, accumulate=True)


def _penalise(logits: torch.Tensor, states: Sequence[SamplingState]) -> None:
    """Repetition penalty (Keskar et al. 2019, arXiv:1909.05858), then frequency and presence as OpenAI defines them."""
    found = [(row, *s.seen_tokens()) for row, s in enumerate(states) if s.penalised]
    if not found:
        return
    rows, ids, counts = _flat(found, logits.device)
    params = [s.params for s in states]
    repetition = _column([p.repetition_penalty for p in params], logits)[rows, 0]
    frequency = _column([p.frequency_penalty for p in params], logits)[rows, 0]
    presence = _column([p.presence_penalty for p in params], logits)[rows, 0]
    seen = logits[rows, ids]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen -= frequency * counts + presence * (counts > 0)
    # A tiny repetition penalty must not overflow to infinity, which no distribution survives.
    logits[rows, ids] = seen.clamp_(max=torch.finfo(seen.dtype).max)


def _kth_largest(weights: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    top = weights.topk(max(top_k), dim=-1).values
    return top.gather(1, torch.tensor(top_k, device=weights.device)[:, None] - 1)


def _nucleus_floor(weights: torch.Tensor, lower: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """The least weight in the nucleus (Holtzman et al. 2020, arXiv:1904.09751) of the tokens not below `lower`.

    Args:
        weights: `[num_rows, vocab]`.
        lower: `[num_rows, 1]`, what top-k cuts off below.
        top_p: one per row.

    Returns:
        `[num_rows, 1]`, at least `lower`.
    """
    vocab_size = weights.shape[1]
    total = weights.masked_fill(weights < lower, 0.0).sum(dim=-1, keepdim=True, dtype=torch.float64)
    target = total * torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None]
    floor = lower.clone()
    pending = torch.arange(len(top_p), device=weights.device)
    # A GPU sorts faster than it waits for the host to learn which rows are still pending.
    narrow = [] if weights.is_cuda else [width for width in _NUCLEUS_WIDTHS if width < vocab_size]
    for width in (*narrow, vocab_size):
        rows = weights[pending]
        top = rows.topk(width).values if width < vocab_size else rows.sort(dim=-1, descending=True).values
        mass = top.masked_fill(top < lower[pending], 0.0).cumsum(dim=-1, dtype=torch.float64)
        # The nucleus ends with the first token at which the mass reaches the target.
        last = (mass < target[pending]).sum(dim=-1, keepdim=True)
        reached = top.gather(1, last.clamp(max=width - 1)).maximum(lower[pending])
        if width == vocab_size:
            floor[pending] = reached
            break
        done = last[:, 0] < width
        floor[pending[done]] = reached[done]
        pending = pending[~done]
        if not len(pending):
            break
    return floor


def _take(weights: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return weights if len(rows) == len(weights) else weights[rows]


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _flat(
    found: Sequence[tuple[int, Ids, Values]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`(row, ids, values)` per row to flat rows, ids and values, on the logits' device."""
    rows = np.repeat([row for row, _, _ in found], [len(ids) for _, ids, _ in found])
    ids = np.concatenate([ids for _, ids, _ in found])
    values = np.concatenate([values for _, _, values in found])
    return (
        torch.from_numpy(rows).to(device),
        torch.from_numpy(ids).to(device),
        torch.from_numpy(values).to(device),
    )
