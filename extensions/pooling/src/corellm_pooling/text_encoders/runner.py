"""The worker of an encoder: every step runs whole prompts, and pools each. There is no cache.

Knows a step's prompts; how they go through the model is in `forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from corellm.scheduling.batch import SequenceChunk
from corellm.worker.sequence_state import SequenceState
from corellm_pooling.poolers import DispatchPooler
from corellm_pooling.runner import PoolingRunner
from corellm_pooling.text_encoders.forward import Batch, Forward


class TextEncoderRunner(PoolingRunner):
    """A pooling runner for whole prompts.

    Args:
        encode: the encoder's forward pass.
        pooler: of the model.
        sees_filling: whether a prompt's tokens see those that fill it up.
        *args, **kwargs: of `ModelRunner`.
    """

    reads_pairs = True

    def __init__(
        self, encode: Forward, pooler: DispatchPooler, *args: Any, sees_filling: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(pooler, *args, **kwargs)
        self._encode, self._sees_filling = encode, sees_filling

    def hidden_states(
        self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> tuple[Tensor, Sequence[int]]:
        """See `PoolingRunner`."""
        wanted = [state.sequence.prompt_task for state in states]
        types = [None if params is None else params.token_type_ids for params in wanted]
        unseen = [0 if params is None or self._sees_filling else params.num_filled for params in wanted]
        return self._encode(Batch([chunk.token_ids for chunk in chunks], types, unseen))
