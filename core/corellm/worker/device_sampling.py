"""Sampling by an extension: what it is called with, and what it must give.

Parameters go to the device in one copy, and nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from corellm.errors import ContractError
from corellm.worker.logit_edits import LogitEdits, collect_edits
from corellm.worker.sampling_state import SamplingState
from corellm.worker.transfers import upload


class Sample(Protocol):
    """How an extension chooses tokens on a device: in its own way, what `token_weights` and `draw` give."""

    def __call__(
        self,
        logits: Tensor,
        temperature: Tensor | None,
        top_k: Tensor | None,
        top_p: Tensor | None,
        min_p: Tensor | None,
        uniforms: Tensor | None,
        edits: LogitEdits | None,
    ) -> tuple[Tensor, Tensor]:
        """A token for every row of `logits [num_rows, vocab]`, of any float type; not changed.

        Args:
            logits: as the model gave them.
            temperature: `[num_rows]` float64, 0 for the best token; None where all rows want theirs.
            top_k: `[num_rows]` int32, 0 for all.
            top_p: `[num_rows]` float64; this and `top_k` are None where no row asks for either.
            min_p: `[num_rows]` float64, 0 for all.
            uniforms: `[num_rows]` float64 in [0, 1); these two are None where `temperature` is.
            edits: to be applied first; None for nothing.

        Returns:
            Tokens `[num_rows]` int64, `FAILED` for a row that is not finite or has none; and the largest of each row's
            logits as they were given, `[num_rows]`, infinity where one is NaN.
        """
        ...


_Parameters: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def sample_by(sample: Sample, logits: Tensor, states: Sequence[SamplingState], ahead: int) -> tuple[Tensor, Tensor]:
    """The tokens of all rows, and the largest logit of each; arguments as of `Sampler.start`.

    Raises:
        ContractError: the extension gave something else.
    """
    edits = collect_edits(states, logits.device) if any(state.edits_logits for state in states) else None
    answer = sample(logits, *_parameters(states, logits.device, ahead), edits)
    if not _is_answer(answer, len(states)):
        parts = answer if isinstance(answer, tuple) else (answer,)
        told = [f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__ for x in parts]
        raise ContractError(
            f"the function of register_sampling must return tokens, torch.int64 [{len(states)}], and largest logits "
            f"[{len(states)}]; it returned {', '.join(told)}"
        )
    return answer


def _parameters(states: Sequence[SamplingState], device: torch.device, ahead: int) -> _Parameters:
    """Temperature, top-k, top-p, min-p and random numbers, as far as they are asked for."""
    if all(state.greedy for state in states):
        return None, None, None, None, None
    rows = [
        (0.0, 0, 1.0, 0.0, 0.0) if state.greedy else (p.temperature, p.top_k, p.top_p, p.min_p, state.uniform(ahead))
        for state, p in ((state, state.params) for state in states)
    ]
    wanted = np.ascontiguousarray(np.array(rows, dtype=np.float64).T)
    temperature, top_k, top_p, min_p, uniforms = upload(wanted, device)
    if not wanted[1].any() and (wanted[2] == 1).all():
        return temperature, None, None, min_p, uniforms
    return temperature, top_k.int(), top_p, min_p, uniforms


def _is_answer(answer: Any, num_rows: int) -> bool:
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, Tensor) for part in answer)):
        return False
    tokens, largest = answer
    return bool(tokens.dtype == torch.int64 and tokens.shape == largest.shape == (num_rows,))
