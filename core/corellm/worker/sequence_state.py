"""The worker's state of a running sequence: its sampling, positions and block table.

Knows one sequence; knows neither the batch it runs in nor what it attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from corellm.errors import ContractError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.hook_callers import HookCallers
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence


@dataclass
class SequenceState:
    """The worker's state of a running sequence."""

    sequence: NewSequence
    sampling: SamplingState
    prompt_positions: NDArray[np.int64] | None = None
    """`[axes, prompt_len]` (or `[prompt_len]`) where the adapter gives positions; None for 0, 1, 2, ..."""
    position_offset: int = 0
    """Added to a position after the prompt."""
    blocks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(8, dtype=np.int64))
    """The block table so far, with room to grow."""
    num_blocks: int = 0

    def sync_blocks(self, table: Sequence[int], needed: int) -> NDArray[np.int64]:
        """Copy the entries that the engine's table has gained; return the first `needed`."""
        if needed > self.num_blocks:
            if needed > len(self.blocks):
                self.blocks = np.resize(self.blocks, max(needed, 2 * len(self.blocks)))
            self.blocks[self.num_blocks : needed] = table[self.num_blocks : needed]
            self.num_blocks = needed
        return self.blocks[:needed]

    def positions(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the positions of the tokens `[start, start + count)`: `[count]`, or `[axes, count]` for M-RoPE."""
        if self.prompt_positions is None:
            return np.arange(start, start + count, dtype=np.int64) + self.position_offset
        prompt_len = self.prompt_positions.shape[-1]
        inside = self.prompt_positions[..., start : start + count]
        beyond = np.arange(max(start, prompt_len), start + count, dtype=np.int64) + self.position_offset
        beyond = np.broadcast_to(beyond, (*self.prompt_positions.shape[:-1], len(beyond)))
        return np.concatenate([inside, beyond], axis=-1)


def rope_positions(
    hooks: HookCallers, model: Any, token_ids: Sequence[int], features: Sequence[MultiModalFeature]
) -> tuple[NDArray[np.int64], int] | None:
    """Return prompt positions, `[prompt_len]` or `[axes, prompt_len]`, and the offset after it; None for 0, 1, ...

    Raises:
        ContractError: the adapter returned another number of positions.
    """
    result = hooks.get_rope_positions(model=model, token_ids=token_ids, mm_features=features)
    if result is None:
        return None
    positions, offset = result
    if positions.ndim not in (1, 2) or positions.shape[-1] != len(token_ids):
        raise ContractError(
            f"get_rope_positions must return [{len(token_ids)}] or [axes, {len(token_ids)}] positions, got "
            f"{tuple(positions.shape)}"
        )
    return positions.to("cpu", torch.int64).numpy(), offset
