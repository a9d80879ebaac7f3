"""From logits to the weights tokens are drawn with: temperature and truncation.

Knows how these parameters change the distributions of a batch; knows nothing of how a token is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from corellm.sampling.sampling_state import SamplingState

_NUCLEUS_WIDTHS = (128, 2048)
"""Numbers of best tokens that top-p tries before it sorts the vocabulary (on a CPU a sort takes 20 times longer)."""


def token_weights(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    """Return unnormalised probabilities after temperature, top-k, top-p and min-p.

    The most likely token has weight 1, so no exponential overflows; and each truncation is a lower bound on the
    weight: the k-th largest, the least one in the nucleus, `min_p` itself. All tokens that tie with a
    bound are kept, so a row's result does not depend on the order of a sort.

    Args:
        logits: `[num_seqs, vocab]`, float32, with at least one finite value per row; overwritten.
        states: one per row, temperature above 0.

    Returns:
        Weights `[num_seqs, vocab]`, 0 for the tokens that were cut off.
    """
    temperature = _column([s.params.temperature for s in states], logits)
    weights = logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(temperature).exp_()

    rows = [row for row, s in enumerate(states) if 0 < s.params.top_k < weights.shape[1]]
    if rows:
        _cut(weights, rows, _kth_largest(_take(weights, rows), [states[row].params.top_k for row in rows]))
    rows = [row for row, s in enumerate(states) if s.params.top_p < 1.0]
    if rows:
        _cut(weights, rows, _nucleus_floor(_take(weights, rows), [states[row].params.top_p for row in rows]))
    rows = [row for row, s in enumerate(states) if s.params.min_p > 0.0]
    if rows:
        _cut(weights, rows, _column([states[row].params.min_p for row in rows], weights))
    return weights


def _kth_largest(weights: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    top = weights.topk(max(top_k), dim=-1).values
    return top.gather(1, torch.tensor(top_k, device=weights.device)[:, None] - 1)


def _nucleus_floor(weights: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """Return the least weight in the nucleus (Holtzman et al. 2020, arXiv:1904.09751), `[num_rows, 1]`.

    Args:
        weights: `[num_rows, vocab]`, 0 for what was cut off before.
        top_p: one per row.
    """
    vocab_size = weights.shape[1]
    share = torch.tensor(top_p, dtype=torch.float64, device=weights.device)[:, None]
    target = share * weights.sum(dim=-1, keepdim=True)
    floor = torch.zeros_like(weights[:, :1])
    left = torch.arange(len(weights), device=weights.device)
    # on a GPU, sorting is faster than waiting for the host to learn which rows are left
    narrow = [] if weights.is_cuda else [width for width in _NUCLEUS_WIDTHS if width < vocab_size]
    for width in narrow:
        top = weights[left].topk(width, dim=-1).values
        bound, reached = _weight_at_mass(top, target[left])
        floor[left[reached]] = bound[reached]
        left = left[~reached]
        if not len(left):
            return floor
    everything = weights[left].sort(dim=-1, descending=True).values
    floor[left], _ = _weight_at_mass(everything, target[left])
    return floor


def _weight_at_mass(descending: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first weight `[num_rows, 1]` with which the running sum reaches the target, and whether it does.

    If it does not, because of rounding or because more weights follow, return the last weight.
    """
    width = descending.shape[1]
    short = (descending.cumsum(dim=-1, dtype=torch.float64) < target).sum(dim=-1, keepdim=True)
    return descending.gather(1, short.clamp(max=width - 1)), short[:, 0] < width


def _cut(weights: torch.Tensor, rows: list[int], lower: torch.Tensor) -> None:
    """Set the weights of these rows that are below `lower`, `[len(rows), 1]`, to 0."""
    bound = torch.zeros_like(weights[:, :1])
    bound[rows] = lower
    weights.masked_fill_(weights < bound, 0.0)


def _take(weights: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return weights if len(rows) == len(weights) else weights[rows]


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
