"""Log-probabilities under the model itself: log-softmax of the raw logits, before any sampling parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from corellm.scheduling.batch import TokenLogprobs
from corellm.system.transfers import Download, upload

ALL = -1
"""Number of most likely tokens that stands for the whole vocabulary."""
_LOGIT_ROWS = 128
"""Prompt positions whose logits are held at once."""
_ALL_ROWS = 8
"""Prompt positions held at once if log-probabilities of the whole vocabulary are wanted."""


class LogprobsInFlight:
    """Log-probabilities on their way from the device; the logits may be overwritten meanwhile.

    Args:
        logits: `[n, vocab]`, any float dtype, of the model.
        token_ids: `[n]` int64 on their device, the token at each position. A prompt's placeholder id beyond the logits'
            width has log-probability minus infinity and the last rank.
        num_top: how many of the most likely tokens to report; 0 for none, `ALL` for all.
        stated: further tokens of each position, within the logits' width.
    """

    def __init__(
        self, logits: Tensor, token_ids: Tensor, num_top: int, stated: Sequence[Sequence[int]] | None = None
    ) -> None:
        values = logits.float()
        vocab_size = values.shape[1]
        tokens = token_ids[:, None]
        beyond = tokens >= vocab_size
        own = values.gather(1, tokens.clamp(0, vocab_size - 1)).masked_fill(beyond, -torch.inf)
        own_rank = ((values > own).sum(dim=-1, keepdim=True) + 1).masked_fill(beyond, vocab_size + 1)
        top_ids = _most_likely(values, vocab_size if num_top == ALL else min(num_top, vocab_size))
        top = values.gather(1, top_ids)
        place = torch.arange(1, top.shape[1] + 1, device=values.device).expand(top.shape)
        lower_than_left = torch.cat([torch.ones_like(top[:, :1], dtype=torch.bool), top[:, 1:] < top[:, :-1]], dim=1)
        top_rank = place.where(lower_than_left, 0).cummax(dim=-1).values if top.shape[1] else place

        total = _log_of_sum(values)
        ids = torch.cat([tokens, top_ids], dim=1)
        logprobs = torch.cat([own, top], dim=1) - total
        ranks = torch.cat([own_rank, top_rank], dim=1)
        self._num_stated = None if stated is None else [len(row) for row in stated]
        if stated is not None:
            asked = _padded(stated, values.device)
            found = values.gather(1, asked)
            ids, logprobs = torch.cat([ids, asked], dim=1), torch.cat([logprobs, found - total], dim=1)
            ranks = torch.cat([ranks, _ranks(values, found)], dim=1)
        self._numbers = Download(torch.stack([ids.double(), logprobs.double(), ranks.double()], dim=1))

    def wait(self) -> list[TokenLogprobs]:
        """Return per row the token itself, then the `num_top` most likely in descending order (it may be among them),
        then the stated ones.

        Equal logits share a rank: one more than the number of tokens that are more likely. They come in the order of
        their ids.
        """
        rows = self._numbers.wait()
        if self._num_stated is not None:  # without those that fill shorter rows up
            padding = max(self._num_stated)
            rows = [
                [numbers[: len(numbers) - padding + count] for numbers in row]
                for row, count in zip(rows, self._num_stated, strict=True)
            ]
        return [
            TokenLogprobs([int(token) for token in ids], logprobs, [int(rank) for rank in ranks])
            for ids, logprobs, ranks in rows
        ]


def _most_likely(values: Tensor, count: int) -> Tensor:
    """Return the ids of the largest of each row, `[n, count]`, those of equal ones in order: a step reports as many as
    its most demanding request wants, and `topk` of floats orders equal ones by how many these are.
    """
    if not count:
        return values.new_empty((len(values), 0), dtype=torch.int64)
    bits = values.view(torch.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers in the order of the floats
    ids = torch.arange(values.shape[1], device=values.device)
    return ((ascending.long() << 32) | (values.shape[1] - 1 - ids)).topk(count, dim=-1).indices


def _log_of_sum(values: Tensor) -> Tensor:
    """Return the logarithm of each row's sum of exponentials, `[n, 1]`.

    A sum with a single result is split over threads by torch, and rounded otherwise than in a batch.
    """
    rows = values.expand(2, -1) if len(values) == 1 else values
    return rows.logsumexp(dim=-1, keepdim=True)[: len(values)]


def _padded(stated: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return the rows, filled up with token 0: `[n, most]` int64."""
    filled = np.zeros((len(stated), max(map(len, stated))), dtype=np.int64)
    for row, tokens in zip(filled, stated, strict=True):
        row[: len(tokens)] = tokens
    return upload(filled, device)


def _ranks(values: Tensor, found: Tensor) -> Tensor:
    """Return one more than how many of a row's `values` `[n, vocab]` are above each of its `found` `[n, count]`."""
    ascending = values.sort(dim=-1).values
    return values.shape[1] - torch.searchsorted(ascending, found.contiguous(), right=True) + 1


def prompt_logprobs(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, token_ids: Tensor, num_top: int
) -> list[TokenLogprobs]:
    """Return log-probabilities of prompt tokens from the hidden states before each; see `LogprobsInFlight.wait`.

    Args:
        logits_of: from `[n, hidden_size]` to `[n, vocab]`; called for few rows at a time, to bound memory.
        hidden: `[num_tokens, hidden_size]`.
        token_ids: `[num_tokens]` int64.
        num_top: how many of the most likely tokens to report.
    """
    num_rows = _ALL_ROWS if num_top == ALL else _LOGIT_ROWS
    parts = zip(torch.split(hidden, num_rows), torch.split(token_ids, num_rows), strict=True)
    return [found for rows, ids in parts for found in LogprobsInFlight(logits_of(rows), ids, num_top).wait()]
