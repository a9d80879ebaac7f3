"""Which tokens of a step take item embeddings, and those embeddings, as the engine's item slices say.

Knows neither how embeddings are computed nor how they are merged with those of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.batch import SequenceChunk
from corellm.worker.sequence_state import SequenceState


def select_embeddings(
    chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], output: Callable[[MultiModalFeature], Tensor]
) -> tuple[NDArray[np.bool_], list[Tensor]]:
    """Return which tokens of a flat batch take an item embedding, `[num_tokens]`, and those embeddings in order.

    `output` returns all embeddings of an item.
    """
    mask = np.zeros(sum(chunk.num_tokens for chunk in chunks), dtype=bool)
    selected: list[Tensor] = []
    begin = 0  # of the chunk in the batch
    for chunk, state in zip(chunks, states, strict=True):
        for item in chunk.items:
            mask[begin:][item.tokens] = True if item.is_embed is None else item.is_embed
            selected.append(output(state.sequence.features[item.index])[item.embeds])
        begin += chunk.num_tokens
    return mask, selected
