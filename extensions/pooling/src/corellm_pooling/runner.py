"""Runs a scheduled batch of a model that pools: the same forward pass, then the pooler in place of the sampler.

Knows chunks and their hidden states; knows no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from corellm.errors import RequestFailedError
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence, SequenceChunk
from corellm.system.transfers import upload_all
from corellm.worker.model_runner import ModelRunner
from corellm.worker.sequence_state import SequenceState
from corellm.worker.step_in_flight import StepInFlight
from corellm_pooling.poolers import DispatchPooler, PooledChunk


@dataclass
class PooledState(SequenceState):
    """The worker's state of a prompt that is pooled."""

    carried: dict[int, Tensor] = field(default_factory=dict)
    """What its pooler keeps of earlier chunks."""


class PoolingRunner(ModelRunner):
    """A model runner whose steps end in a pooler.

    Args:
        pooler: of the model.
        *args, **kwargs: of `ModelRunner`.
    """

    samples = False
    reads_pairs = False
    """Whether the model was trained on two texts joined by its tokenizer."""

    def __init__(self, pooler: DispatchPooler, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pooler = pooler
        self._sampling: SamplingState | None = None
        """Sampling state that all prompts share: no token is sampled."""

    def new_state(self, sequence: NewSequence) -> PooledState:
        """The state of a prompt of which nothing is computed yet."""
        self._sampling = self._sampling or super().new_state(sequence).sampling
        return PooledState(sequence, self._sampling)

    def hidden_states(
        self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> tuple[Tensor, Sequence[int]]:
        """Return the hidden states of a step `[num_tokens, hidden_size]`, and each chunk's first row in them."""
        batch = self.lay_out(chunks, states)
        hidden = self.forward(upload_all(batch, self.device), chunks, states)
        return hidden, batch.metadata.query_start_loc[:-1].tolist()

    def run(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], step: StepInFlight) -> None:
        """Run one forward pass, and pool every chunk."""
        hidden, firsts = self.hidden_states(chunks, states)
        pooled = {
            chunk.request_id: PooledChunk(params, first, chunk.start, chunk.token_ids, chunk.samples, state.carried)
            for chunk, state, first in zip(chunks, states, firsts, strict=True)
            if isinstance(state, PooledState) and (params := state.sequence.prompt_task) is not None  # no dummy
        }
        for request_id, result in zip(pooled, self.pooler.pool(hidden, list(pooled.values())), strict=True):
            if result is None:
                continue
            data = result.float().cpu().numpy()
            if np.isfinite(data).all():
                step.result.made[request_id] = data
            else:
                step.result.failed[request_id] = RequestFailedError(
                    "the pooled result holds NaN or infinity; another dtype (bfloat16 or float32) may help, or the "
                    "checkpoint or given embeddings are broken"
                )
