"""Which rows of items' embeddings the tokens of a step take.

Knows placeholders and chunks; neither how rows are computed nor how they are written among those of text.
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
"""The item embeddings that chunks touch: `{request id: [(item, all its rows)]}`."""


def touched(features: Sequence[MultiModalFeature], chunk: SequenceChunk) -> list[MultiModalFeature]:
    """The items of a sequence, in the order of their placeholders, of which its chunk needs embeddings."""
    if not features or features[-1].placeholder.end <= chunk.start:
        return []  # every decode: it lies behind all items, of which there may be hundreds
    end = chunk.start + chunk.num_tokens
    return [
        feature
        for feature in features
        if feature.placeholder.embeds_before(chunk.start) < feature.placeholder.embeds_before(end)
    ]


def rows_of(chunks: Sequence[SequenceChunk], embeddings: Embeddings) -> tuple[NDArray[np.bool_], list[Tensor]]:
    """Which tokens of a flat batch take a row, `[num_tokens]`, and the rows in their order."""
    mask = np.zeros(sum(chunk.num_tokens for chunk in chunks), dtype=bool)
    rows: list[Tensor] = []
    begin = 0  # of the chunk in the batch
    for chunk in chunks:
        for feature, output in embeddings.get(chunk.request_id, ()):
            place = feature.placeholder
            first, last = max(place.offset, chunk.start), min(place.end, chunk.start + chunk.num_tokens)
            embeds = True if place.is_embed is None else place.is_embed[first - place.offset : last - place.offset]
            mask[begin + first - chunk.start : begin + last - chunk.start] = embeds
            rows.append(output[place.embeds_before(first) : place.embeds_before(last)])
        begin += chunk.num_tokens
    return mask, rows
