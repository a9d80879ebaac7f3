"""A head as a draft model: what it reads beside tokens, and what it gives beside them.

Knows chunks and rows; knows neither which sequences are drafted nor whose rows they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.draft_model import DraftModel
from corellm_speculative.head_module import Head


class HeadModel(DraftModel):
    """Computes the tokens that a head chooses.

    Args:
        head: the head.
        args, more: of `DraftModel`.
    """

    def __init__(self, head: Head, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head = head

    def combined(self, rows: Tensor) -> Tensor:
        """Return states `[n, width]` of what was noted of the model, `[n, several hidden states]`."""
        return self._head.combined(rows)

    def next_of(
        self, given: Tensor, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> tuple[list[int], Tensor]:
        """Return what `next_tokens` does, and the head's own state behind each chunk, `[len(chunks), width]`.

        Args:
            given: `[num_tokens, width]`, the state before each token.
            chunks, states: as of `next_tokens`.
        """
        self._head.given[: len(given)].copy_(given)
        tokens = self.next_tokens(chunks, states)
        ends = np.cumsum([chunk.num_tokens for chunk in chunks]) - 1
        return tokens, self._head.made[upload(ends, given.device)]


class HeadHooks:
    """The hooks of a head: those that a step of text calls."""

    def get_input_embeddings(self, model: Head, input_ids: Tensor) -> Tensor:
        """Return the embeddings of tokens."""
        return model.embed(input_ids)

    def compute_logits(self, model: Head, hidden_states: Tensor) -> Tensor:
        """Return the logits of the model's tokens."""
        return model.logits(hidden_states)
