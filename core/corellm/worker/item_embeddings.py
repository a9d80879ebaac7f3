"""Which item embeddings the tokens of a step take.

Knows placeholders and chunks; knows neither how embeddings are computed nor how they are merged with those of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from corellm.multimodal.inputs import MultiModalFeature
from corellm.worker.batch import SequenceChunk

Embeddings: TypeAlias = Mapping[str, Sequence[tuple[MultiModalFeature, Tensor]]]
"""The item embeddings that chunks touch: `{request id: [(item, all its embeddings)]}`."""


def touched(features: Sequence[MultiModalFeature], chunk: SequenceChunk) -> list[MultiModalFeature]:
    """Return the items of which a chunk needs embeddings, in the order of their placeholders."""
    if not features or features[-1].placeholder.end <= chunk.start:
        return []  # every decode takes this way: there may be hundreds of items
    end = chunk.start + chunk.num_tokens
    return [
        feature
        for feature in features
        if feature.placeholder.embeds_before(chunk.start) < feature.placeholder.embeds_before(end)
    ]


def select_embeddings(
    chunks: Sequence[SequenceChunk], embeddings: Embeddings
) -> tuple[NDArray[np.bool_], list[Tensor]]:
    """Return which tokens of a flat batch take an item embedding, `[num_tokens]`, and those embeddings in order."""
    mask = np.zeros(sum(chunk.num_tokens for chunk in chunks), dtype=bool)
    selected: list[Tensor] = []
    begin = 0  # of the chunk in the batch
    for chunk in chunks:
        for feature, output in embeddings.get(chunk.request_id, ()):
            place = feature.placeholder
            first, last = max(place.offset, chunk.start), min(place.end, chunk.start + chunk.num_tokens)
            embeds = True if place.is_embed is None else place.is_embed[first - place.offset : last - place.offset]
            mask[begin + first - chunk.start : begin + last - chunk.start] = embeds
            selected.append(output[place.embeds_before(first) : place.embeds_before(last)])
        begin += chunk.num_tokens
    return mask, selected
