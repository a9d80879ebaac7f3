"""Which tokens of a step see later ones of their prompt: the worker's side of `corellm.scheduling.spans`.

Knows positions; attention heeds the arrays. Arithmetic is numpy on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from corellm.attention.backend import AttentionMetadata
from corellm.scheduling.batch import SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState


class Spans(StepPart):
    """Says how many of its sequence's tokens each token sees.

    Args:
        causal_layers: the decoder's layers in which tokens of a span do not see each other.
        windows_cut: whether a window hides the beginning of a span from tokens of the same span.
    """

    def __init__(self, causal_layers: frozenset[int], *, windows_cut: bool) -> None:
        self._causal_layers, self._windows_cut = causal_layers, windows_cut

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Return the step with `visible_lens`, and where no window cuts spans `span_starts`."""
        visible, starts = self._visible(chunks, states)
        if visible is None or starts is None:
            return batch
        metadata = replace(batch.metadata, visible_lens=torch.from_numpy(visible))
        if not self._windows_cut:
            outside = _outside(metadata, starts)
            metadata = replace(metadata, span_starts=torch.from_numpy(starts), num_decodes=outside)
        causal = replace(metadata, visible_lens=None, span_starts=None)
        return replace(batch, metadata=metadata, of_layers=dict.fromkeys(self._causal_layers, causal))

    def _visible(
        self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
        """Return how many tokens each token sees, and the first of its span; None where there is no span.

        A chunk has all tokens of a span but those that were in the prefix cache. The last one alone sees up to itself,
        and only a window that does not cut spans shows that it is in one.
        """
        num_plain = int(self._windows_cut)  # tokens at a span's end that see as those outside do
        visible = starts = None
        row = 0
        for chunk, state in zip(chunks, states, strict=True):
            spans, stop = state.sequence.part.get("spans"), chunk.start + chunk.num_tokens
            for start, end in spans if spans and chunk.start < spans[-1][1] - num_plain else ():
                if chunk.start < end - num_plain and start < stop:
                    assert end <= stop, f"the chunk [{chunk.start}, {stop}) cuts the span [{start}, {end})"
                    if visible is None or starts is None:
                        starts = np.concatenate(
                            [np.arange(c.start, c.start + c.num_tokens) for c in chunks], dtype=np.int32
                        )
                        visible = starts + 1
                    rows = slice(row + max(start - chunk.start, 0), row + end - chunk.start)
                    visible[rows], starts[rows] = end, start
            row += chunk.num_tokens
        return visible, starts


def _outside(metadata: AttentionMetadata, starts: NDArray[np.int32]) -> int:
    """Return how many sequences, from the first on, have one token each that is outside of a span."""
    num_single = metadata.num_decodes
    outside = starts[:num_single] == np.array(metadata.seq_lens[:num_single]) - 1
    return int(np.append(outside, False).argmin())
