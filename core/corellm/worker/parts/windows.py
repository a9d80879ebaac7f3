"""Blocks' places in layers that see a window only: the worker's side of `corellm.scheduling.window_blocks`.

Knows which layers these are and where the cache has a block there; knows no requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from corellm.attention.backend import AttentionMetadata
from corellm.errors import CorellmError
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.kv_cache import KVCache, LayerLayout
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState


class Windows(StepPart):
    """Gives layers with a window their own slots and block tables.

    Args:
        cache: in which blocks have places.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Move blocks to their new places."""
        self._cache.move(batch.messages.get("windows", ()))
        return {}

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Return the step with slots and block tables of blocks' places."""
        places, size = self._cache.places, self._cache.block_size
        slots, tables = batch.metadata.slot_mapping.numpy(), batch.metadata.block_tables.numpy()
        slot_mapping = torch.from_numpy(places[slots // size] * size + slots % size)
        block_tables = torch.from_numpy(places[tables])
        of_layers, placed = dict(batch.of_layers), dict[int, AttentionMetadata]()
        for layer in self._cache.placed_layers:
            told = batch.of_layers.get(layer, batch.metadata)
            if id(told) not in placed:  # one for all layers that were told the same
                placed[id(told)] = replace(told, slot_mapping=slot_mapping, block_tables=block_tables)
            of_layers[layer] = placed[id(told)]
        return replace(batch, of_layers=of_layers)

    def forget(self) -> None:
        """Take every block's place."""
        self._cache.forget_places()


def window_layers(layout: dict[int, LayerLayout]) -> frozenset[int]:
    """Return the layers whose keys and values are seen within a window only, also by layers that share them."""
    seen_whole = {i if layer.shares is None else layer.shares for i, layer in layout.items() if layer.window is None}
    return frozenset(i for i, layer in layout.items() if not seen_whole & {i, layer.shares})


def largest_window(layout: dict[int, LayerLayout]) -> int | None:
    """Return the largest window of `window_layers`; None if there are none."""
    return max((window for i in window_layers(layout) if (window := layout[i].window) is not None), default=None)
