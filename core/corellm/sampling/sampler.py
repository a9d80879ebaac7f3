"""Chooses the next token of every sequence of a batch.

Knows how to choose: the best token, or one drawn from its weights. How parameters change the logits is in
`logit_edits.py` and `token_weights.py`, what a sequence brings along in `sampling_state.py`. A row that cannot be
sampled fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from corellm.errors import CorellmError, InvalidParameterError, RequestFailedError
from corellm.sampling.device_sampling import Sample, sample_by
from corellm.sampling.logit_edits import edit_logits
from corellm.sampling.logprobs import ALL, LogprobsInFlight
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling.token_weights import token_weights
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import TokenLogprobs
from corellm.system.transfers import Download, upload

FAILED = -1
"""In place of the token of a row that failed."""
_DRAW_BLOCK = 256
"""Tokens per block of the two-level cumulative sum."""


@dataclass(slots=True)
class SamplerOutput:
    """The chosen token of each row."""

    token_ids: list[int]
    """The next token of each row; `FAILED` where the row is in `failed`."""
    logprobs: list[TokenLogprobs | None]
    """None for rows that want none or failed."""
    failed: dict[int, CorellmError] = field(default_factory=dict)
    """`{row: why no token could be chosen}`."""


class TokensInFlight:
    """Tokens that were chosen on the device and are on their way to the host.

    Attributes:
        token_ids: `[num_seqs]` int64, on the device; `FAILED` where none could be chosen.
    """

    def __init__(
        self, logits: torch.Tensor, states: Sequence[SamplingState], peaks: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        self.token_ids = token_ids
        self._states, self._peaks = states, peaks
        self._logprobs = _start_logprobs(logits, states, token_ids)
        self._host = Download(token_ids)

    def wait(self) -> SamplerOutput:
        """Wait for the device and return what was chosen."""
        token_ids: list[int] = self._host.wait()
        failed = {
            row: _failure(self._states[row], self._peaks[row].item())
            for row, token in enumerate(token_ids)
            if token == FAILED
        }
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        if self._logprobs is not None:
            rows, pending = self._logprobs
            for row, found in zip(rows, pending.wait(), strict=True):
                if token_ids[row] != FAILED:
                    logprobs[row] = _asked(found, self._states[row].params)
        return SamplerOutput(token_ids, logprobs, failed)


class Sampler:
    """Chooses one token per row; holds nothing between calls.

    Rows that take their best token share one maximum over the batch; the others are copied to float32, and their
    parameters applied. A row's token does not depend on the other rows.

    Args:
        sample: an extension's function; None for plain torch.
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

    def start(self, logits: torch.Tensor, states: Sequence[SamplingState], *, ahead: int = 0) -> TokensInFlight:
        """Choose tokens as a call does, without waiting for the device.

        Args:
            logits: see `__call__`; they may be overwritten before `wait`.
            states: at least one.
            ahead: number of earlier tokens that are not in `output_token_ids` yet; only for sequences whose sampling
                needs their number, not their ids.
        """
        raw = logits
        for processing in {state.processing for state in states if state.processing is not None}:
            logits = processing(logits, states)
        if self._sample is not None:
            tokens, peaks = sample_by(self._sample, logits, states, ahead)
            return TokensInFlight(raw, states, peaks, tokens)
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
        return TokensInFlight(raw, states, peaks, tokens.where(usable, FAILED))


def _choose(
    logits: torch.Tensor, states: Sequence[SamplingState], num_drawn: int, ahead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens `[num_rows]`, the first `num_drawn` drawn, the others the best, and which rows allow any token."""
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
    """Return one token per row by inverting the cumulative distribution, in the order of the vocabulary.

    It takes one random number per row: noise for every token would cost more than the rest of sampling. Sums in two
    levels (blocks, then tokens of one block) are fast and keep rounding errors small.

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
    if state.failure is not None:
        return state.failure
    where = f"generated token {state.num_generated}"
    if peak == float("-inf"):
        return RequestFailedError(f"{where}: the model gave every token probability zero")
    if peak != peak or peak == float("inf"):
        return RequestFailedError(
            f"{where}: the model's logits hold NaN or infinity; another dtype (bfloat16 or float32) may help, or the "
            "checkpoint is broken"
        )
    candidates = ("allowed_token_ids", "constraint", "bad_words", "min_tokens", "logit_bias", "logits_processors")
    asked = [name for name in candidates if getattr(state.params, name)]
    return InvalidParameterError(
        f"{where}: {', '.join(asked) or 'the sampling parameters'} leave no token that may be generated; loosen them",
        param=asked[0] if asked else None,
    )


def _start_logprobs(
    logits: torch.Tensor, states: Sequence[SamplingState], token_ids: torch.Tensor
) -> tuple[list[int], LogprobsInFlight] | None:
    """Start log-probabilities of the rows that want them, for the largest number of top tokens among them."""
    wanted = [(row, state.params.logprobs) for row, state in enumerate(states) if state.params.logprobs is not None]
    if not wanted:
        return None
    rows = [row for row, _ in wanted]
    index = upload(np.array(rows, dtype=np.int64), logits.device)
    numbers = [num_top for _, num_top in wanted]
    num_top = ALL if ALL in numbers else max(numbers)
    stated = [states[row].params.logprob_token_ids or () for row in rows]
    return rows, LogprobsInFlight(logits[index], token_ids[index], num_top, stated if any(stated) else None)


def _asked(found: TokenLogprobs, params: SamplingParams) -> TokenLogprobs:
    """Return the token itself, as many of the most likely ones as are wanted, and the stated ones."""
    if params.logprobs == ALL:
        return found
    end, stated = (params.logprobs or 0) + 1, len(found.token_ids) - len(params.logprob_token_ids or ())
    return TokenLogprobs(
        found.token_ids[:end] + found.token_ids[stated:],
        found.logprobs[:end] + found.logprobs[stated:],
        found.ranks[:end] + found.ranks[stated:],
    )
