"""Chooses the next token of every sequence of a batch, and reports log-probabilities.

Knows how to choose: the best token, or one drawn from its weights. How parameters change the logits is in
`logit_edits.py` and `token_weights.py`, what a sequence brings along in `sampling_state.py`. A row that cannot be
sampled fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from corellm.errors import CorellmError, InvalidParameterError, RequestFailedError
from corellm.worker.batch import TokenLogprobs
from corellm.worker.logit_edits import LogitEdits, collect_edits, edit_logits
from corellm.worker.sampling_state import SamplingState
from corellm.worker.token_weights import token_weights
from corellm.worker.upload import upload

FAILED = -1
"""In place of the token of a row that failed."""
_DRAW_BLOCK = 256
"""Tokens per block of the two-level cumulative sum."""


@dataclass(slots=True)
class SamplerOutput:
    """What was chosen, row by row."""

    token_ids: list[int]
    """The next token of each row; `FAILED` where the row is in `failed`."""
    logprobs: list[TokenLogprobs | None]
    """For the rows that asked for them and did not fail."""
    failed: dict[int, CorellmError] = field(default_factory=dict)
    """Row to the reason why no token could be chosen for it."""


class PendingTokens:
    """Tokens that were chosen on the device, and are on their way to the host.

    Attributes:
        token_ids: `[num_seqs]` int64, on the device; `FAILED` where none could be chosen.
    """

    def __init__(
        self, logits: torch.Tensor, states: Sequence[SamplingState], peaks: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        self.token_ids = token_ids
        self._logits, self._states, self._peaks = logits, states, peaks
        self._host, self._arrived = token_ids, None
        if token_ids.is_cuda:
            self._host = torch.empty_like(token_ids, device="cpu", pin_memory=True)
            self._host.copy_(token_ids, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> SamplerOutput:
        """What was chosen; the one wait for the device."""
        if self._arrived is not None:
            self._arrived.synchronize()
        token_ids: list[int] = self._host.tolist()
        failed = {
            row: _failure(self._states[row], self._peaks[row].item())
            for row, token in enumerate(token_ids)
            if token == FAILED
        }
        return SamplerOutput(token_ids, _logprobs(self._logits, self._states, token_ids), failed)


class Sample(Protocol):
    """How an extension chooses tokens on a device: in its own way, what `token_weights` and `draw` give."""

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniforms: torch.Tensor | None,
        edits: LogitEdits | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for every row of `logits [num_rows, vocab]`, of any float type; not changed.

        Args:
            logits: as the model gave them.
            temperature: `[num_rows]` float64, 0 for the best token; None where all rows want theirs.
            top_k: `[num_rows]` int32, 0 for all. This and what follows is None where no row asks.
            top_p, min_p: `[num_rows]` float64.
            uniforms: `[num_rows]` float64 in [0, 1).
            edits: to be applied first.

        Returns:
            Tokens `[num_rows]` int64, `FAILED` for a row that is not finite or has none; and the largest of each row's
            logits as they were given, `[num_rows]`, infinity where one is NaN.
        """
        ...


class Sampler:
    """Chooses one token per row; holds nothing between calls.

    Rows that only want their best token share one maximum over the batch; the others are copied to float32 and pay
    for what they ask. A row's token does not depend on the rows beside it.

    Args:
        sample: an extension's way; None for plain torch.
    """

    def __init__(self, sample: Sample | None = None) -> None:
        self._sample = sample

    def __call__(self, logits: torch.Tensor, states: Sequence[SamplingState]) -> SamplerOutput:
        """Choose the next token of every row.

        Args:
            logits: `[num_seqs, vocab]`, any float dtype; not changed. Minus infinity excludes a token.
            states: one per row; their `output_token_ids` hold everything before the token to be chosen.

        Returns:
            Tokens of probability above zero; a row whose logits are not finite, or whose parameters leave no token,
            is in `failed` instead, with a `RequestFailedError` or an `InvalidParameterError`.
        """
        return self.start(logits, states).wait() if states else SamplerOutput([], [])

    def start(self, logits: torch.Tensor, states: Sequence[SamplingState], *, ahead: int = 0) -> PendingTokens:
        """As a call, without waiting for the device.

        Args:
            logits: may be overwritten before `wait` only if no row asks for log-probabilities.
            states: at least one.
            ahead: how many tokens before the one to be chosen are not in `output_token_ids` yet; of sequences whose
                next token depends on them by its position alone.
        """
        if self._sample is not None:
            tokens, peaks = _sampled(self._sample, logits, states, ahead)
            return PendingTokens(logits, states, peaks, tokens)
        peaks, tokens = logits.max(dim=-1)  # both [num_seqs]; a NaN anywhere in a row is its maximum
        usable = peaks.isfinite()
        drawn = [row for row, state in enumerate(states) if not state.greedy]
        edited = [row for row, state in enumerate(states) if state.greedy and state.edits_logits]
        if drawn or edited:
            rows = torch.tensor(drawn + edited, device=logits.device)
            work = logits[rows].float()  # indexing copies, so this may be overwritten
            chosen, possible = _choose(work, [states[row] for row in drawn + edited], len(drawn), ahead)
            tokens[rows] = chosen
            usable[rows] &= possible
        return PendingTokens(logits, states, peaks, tokens.where(usable, FAILED))


def _sampled(
    sample: Sample, logits: torch.Tensor, states: Sequence[SamplingState], ahead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of all rows, by an extension: parameters go to the device in one copy, and nothing waits for it."""
    edits = collect_edits(states, logits.device) if any(state.edits_logits for state in states) else None
    if all(state.greedy for state in states):
        return sample(logits, None, None, None, None, None, edits)
    rows = [
        (0.0, 0, 1.0, 0.0, 0.0) if state.greedy else (p.temperature, p.top_k, p.top_p, p.min_p, state.uniform(ahead))
        for state, p in ((state, state.params) for state in states)
    ]
    wanted = np.array(rows, dtype=np.float64).T
    temperature, top_k, top_p, min_p, uniforms = upload(np.ascontiguousarray(wanted), logits.device)
    return sample(
        logits,
        temperature,
        top_k.int() if wanted[1].any() else None,
        top_p if (wanted[2] < 1).any() else None,
        min_p if wanted[3].any() else None,
        uniforms,
        edits,
    )


def _choose(
    logits: torch.Tensor, states: Sequence[SamplingState], num_drawn: int, ahead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens `[num_rows]` of rows with parameters, the first `num_drawn` of them drawn, and which are possible."""
    edit_logits(logits, states)
    possible = logits.amax(dim=-1).isfinite()
    best = logits[num_drawn:].argmax(dim=-1)
    if not num_drawn:
        return best, possible
    weights = token_weights(logits[:num_drawn], states[:num_drawn])
    uniforms = [state.uniform(ahead) for state in states[:num_drawn]]
    drawn = draw(weights, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
    return torch.cat([drawn, best]), possible


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token per row by inverting the cumulative distribution, in the order of the vocabulary.

    One random number per row, where drawing noise for every token would cost more than the rest of sampling; and sums
    in two levels (blocks, then tokens of one block), which is fast and keeps rounding errors small.

    Args:
        weights: `[num_rows, vocab]`, unnormalised probabilities.
        uniforms: `[num_rows]`, float64 in [0, 1).

    Returns:
        Token ids `[num_rows]`, int64; never one of weight zero, unless a row has no other (or holds NaN).
    """
    vocab_size = weights.shape[1]
    whole = vocab_size // _DRAW_BLOCK
    body = weights[:, : whole * _DRAW_BLOCK].reshape(len(weights), whole, _DRAW_BLOCK).sum(dim=-1)
    tail = weights[:, whole * _DRAW_BLOCK :].sum(dim=-1, keepdim=True)
    masses = torch.cat([body, tail], dim=1)  # [num_rows, whole + 1]
    ends = masses.cumsum(dim=-1, dtype=torch.float64)
    target = uniforms[:, None] * ends[:, -1:]
    block = _first_beyond(masses, ends, target)  # [num_rows, 1]
    rest = target - (ends.gather(1, block) - masses.gather(1, block))

    tokens = block * _DRAW_BLOCK + torch.arange(_DRAW_BLOCK, device=weights.device)  # [num_rows, _DRAW_BLOCK]
    inside = weights.gather(1, tokens.clamp(max=vocab_size - 1)).masked_fill(tokens >= vocab_size, 0.0)
    place = _first_beyond(inside, inside.cumsum(dim=-1, dtype=torch.float64), rest)
    return tokens.gather(1, place)[:, 0]


def _first_beyond(masses: torch.Tensor, ends: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Index `[num_rows, 1]` of the first positive mass that ends beyond the target; if rounding left none, the last."""
    width = masses.shape[1]
    index = torch.arange(width, device=masses.device)
    positive = masses > 0
    last = index.where(positive, 0).amax(dim=-1, keepdim=True)
    first = index.where(positive & (ends > target), width).amin(dim=-1, keepdim=True)
    return first.minimum(last)


def _failure(state: SamplingState, peak: float) -> CorellmError:
    where = f"generated token {state.num_generated}"
    if peak == float("-inf"):
        return RequestFailedError(f"{where}: the model gave every token probability zero")
    if peak != peak or peak == float("inf"):
        return RequestFailedError(
            f"{where}: the model's logits hold NaN or infinity; another dtype (bfloat16 or float32) may help, or the "
            "checkpoint is broken"
        )
    candidates = ("allowed_token_ids", "bad_words", "min_tokens", "logit_bias")
    asked = [name for name in candidates if getattr(state.params, name)]
    return InvalidParameterError(
        f"{where}: {', '.join(asked) or 'the sampling parameters'} leave no token that may be generated; loosen them",
        param=asked[0] if asked else None,
    )


def _logprobs(
    logits: torch.Tensor, states: Sequence[SamplingState], token_ids: Sequence[int]
) -> list[TokenLogprobs | None]:
    result: list[TokenLogprobs | None] = [None] * len(states)
    wanted = [
        (row, state.params.logprobs)
        for row, state in enumerate(states)
        if state.params.logprobs is not None and token_ids[row] != FAILED
    ]
    if wanted:
        rows = [row for row, _ in wanted]
        found = gather_logprobs(logits[rows], [token_ids[row] for row in rows], max(top for _, top in wanted))
        for (row, top), entry in zip(wanted, found, strict=True):
            result[row] = TokenLogprobs(entry.token_ids[: top + 1], entry.logprobs[: top + 1], entry.ranks[: top + 1])
    return result


def gather_logprobs(logits: torch.Tensor, token_ids: Sequence[int] | torch.Tensor, num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities under the model itself: log-softmax of the raw logits, before any sampling parameter.

    Args:
        logits: `[n, vocab]`, any float dtype, as the model gave them.
        token_ids: `[n]`, the token at each position. A prompt's placeholder id beyond the logits' width has
            log-probability minus infinity and the rank after everything else.
        num_top: how many of the most likely tokens to report; 0 for none.

    Returns:
        Per row the token itself, then the `num_top` most likely in descending order (the token may be among them).
        Equal logits share a rank: one more than the number of tokens that are more likely.
    """
    values = logits.float()
    vocab_size = values.shape[1]
    tokens = torch.as_tensor(token_ids, dtype=torch.int64, device=values.device)[:, None]
    beyond = tokens >= vocab_size
    own = values.gather(1, tokens.clamp(max=vocab_size - 1)).masked_fill(beyond, -torch.inf)
    own_rank = ((values > own).sum(dim=-1, keepdim=True) + 1).masked_fill(beyond, vocab_size + 1)
    top, top_ids = values.topk(min(num_top, vocab_size), dim=-1)
    place = torch.arange(1, top.shape[1] + 1, device=values.device).expand(top.shape)
    lower_than_left = torch.cat([torch.ones_like(top[:, :1], dtype=torch.bool), top[:, 1:] < top[:, :-1]], dim=1)
    top_rank = place.where(lower_than_left, 0).cummax(dim=-1).values if top.shape[1] else place

    total = values.logsumexp(dim=-1, keepdim=True)
    ids = torch.cat([tokens, top_ids], dim=1).tolist()
    logprobs = (torch.cat([own, top], dim=1) - total).tolist()
    ranks = torch.cat([own_rank, top_rank], dim=1).tolist()
    return [TokenLogprobs(*row) for row in zip(ids, logprobs, ranks, strict=True)]
