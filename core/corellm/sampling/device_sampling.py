"""Sampling by an extension: the arguments it gets, and a check of what it returns.

Parameters go to the device in one asynchronous copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from corellm.errors import ContractError
from corellm.sampling.logit_edits import LogitEdits, collect_edits
from corellm.sampling.sampling_state import SamplingState
from corellm.system.transfers import upload


class Sample(Protocol):
    """A function of an extension that samples on the device, with the same results as `token_weights` and `draw`."""

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
        """Return a token for every row of logits.

        Args:
            logits: `[num_rows, vocab]` of the model, of any float type; not to be changed.
            temperature: `[num_rows]` float64, 0 for the best token; None if all rows take the best token.
            top_k: `[num_rows]` int32, 0 for all.
            top_p: `[num_rows]` float64; this and `top_k` are None if no row uses either.
            min_p: `[num_rows]` float64, 0 for all.
            uniforms: `[num_rows]` float64 in [0, 1); this and `min_p` are None if `temperature` is.
            edits: to be applied first; None for nothing.

        Returns:
            Tokens `[num_rows]` int64, `FAILED` for a row that is not finite or allows no token; and each row's largest
            logit before edits, `[num_rows]`, infinity where one is NaN.
        """
        ...


_Parameters: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def sample_by(sample: Sample, logits: Tensor, states: Sequence[SamplingState], ahead: int) -> tuple[Tensor, Tensor]:
    """Return the token and the largest logit of each row; arguments as of `Sampler.start`.

    Raises:
        ContractError: the extension returned something else.
    """
    edits = collect_edits(states, logits.device) if any(state.edits_logits for state in states) else None
    result = sample(logits, *_parameters(states, logits.device, ahead), edits)
    if not _is_valid(result, len(states)):
        parts = result if isinstance(result, tuple) else (result,)
        found = [f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__ for x in parts]
        raise ContractError(
            f"the function of register_sampling must return tokens, torch.int64 [{len(states)}], and largest logits "
            f"[{len(states)}]; it returned {', '.join(found)}"
        )
    return result


def _parameters(states: Sequence[SamplingState], device: torch.device, ahead: int) -> _Parameters:
    """Return temperature, top-k, top-p, min-p and random numbers on the device; None for those no row uses."""
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


def _is_valid(result: Any, num_rows: int) -> bool:
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result)):
        return False
    tokens, largest = result
    return bool(tokens.dtype == torch.int64 and tokens.shape == largest.shape == (num_rows,))
