"""From a scheduled batch to the tensors of one forward pass: flat token ids, positions, slots, block tables.

Knows block tables and positions; knows neither models nor embeddings. Arithmetic is numpy on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corellm.attention.backend import AttentionMetadata
from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.sequence_state import SequenceState


@dataclass(frozen=True)
class FlatBatch:
    """The tensors of one forward pass."""

    input_ids: Tensor
    """`[num_tokens]`."""
    positions: Tensor
    """`[1, num_tokens]`, or `[axes, 1, num_tokens]` for M-RoPE."""
    metadata: AttentionMetadata
    outputs: Tensor | None = None
    """`[num_outputs]`: the tokens whose hidden states are used; None for all."""
    placed: AttentionMetadata | None = None
    """`metadata` for layers in which blocks have places of their own; None where there are none."""


@dataclass(frozen=True)
class StepArrays:
    """The same arrays on the host."""

    token_ids: NDArray[np.int64]
    """`[num_tokens]`."""
    positions: NDArray[np.int64]
    """`[1, num_tokens]`, or `[axes, 1, num_tokens]` for M-RoPE."""
    slots: NDArray[np.int64]
    """`[num_tokens]`."""
    query_lens: list[int]
    seq_lens: list[int]
    block_tables: NDArray[np.int64]
    """`[num_seqs, max_blocks]`, padded with the null block."""
    index: NDArray[np.int64]
    """`[num_tokens]`: which of its sequence's tokens each is."""
    num_decodes: int
    """How many sequences, from the first on, are decodes: `AttentionMetadata.num_decodes`."""
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further arrays of `AttentionMetadata`, by its fields."""
    placed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """Slots and block tables for layers in which blocks have places of their own."""

    def to(self, device: torch.device) -> FlatBatch:
        """Copy all arrays to the device, without waiting."""
        tensor = partial(upload, device=device)
        metadata = AttentionMetadata(
            num_decodes=self.num_decodes,
            query_lens=self.query_lens,
            seq_lens=self.seq_lens,
            query_start_loc=tensor(np.cumsum([0, *self.query_lens], dtype=np.int32)),
            seq_lens_tensor=tensor(np.array(self.seq_lens, dtype=np.int32)),
            block_tables=tensor(self.block_tables),
            slot_mapping=tensor(self.slots),
            **{name: tensor(array) for name, array in self.more.items()},
        )
        placed = None
        if self.placed is not None:
            slots, tables = map(tensor, self.placed)
            placed = replace(metadata, slot_mapping=slots, block_tables=tables)
        return FlatBatch(tensor(self.token_ids), tensor(self.positions), metadata, placed=placed)


def lay_out(chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], block_size: int) -> StepArrays:
    """Return the arrays of a step: its chunks one after another, single-token ones first; states are in their order."""
    query_lens = [chunk.num_tokens for chunk in chunks]
    seq_lens = [chunk.start + chunk.num_tokens for chunk in chunks]
    tables = np.zeros((len(chunks), -(-max(seq_lens) // block_size)), dtype=np.int64)
    for row, chunk, state, seq_len in zip(tables, chunks, states, seq_lens, strict=True):
        needed = -(-seq_len // block_size)
        row[:needed] = state.sync_blocks(chunk.block_table, needed)

    ends = np.cumsum(query_lens)
    rows = np.repeat(np.arange(len(chunks)), query_lens)
    # token t of the batch is token `index[t]` of its sequence
    index = np.arange(ends[-1]) + np.repeat(seq_lens - ends, query_lens)
    slots = tables[rows, index // block_size] * block_size + index % block_size
    token_ids = np.fromiter((t for chunk in chunks for t in chunk.token_ids), dtype=np.int64, count=len(index))
    single = next((i for i, n in enumerate(query_lens) if n != 1), len(query_lens))
    positions = _positions(chunks, states, index)
    return StepArrays(token_ids, positions, slots, query_lens, seq_lens, tables, index, single)


def _positions(
    chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], index: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the positions of the flat batch; as many rows as any sequence has axes."""
    if all(state.prompt_positions is None and not state.position_offset for state in states):
        return index[None]
    parts = [state.positions(chunk.start, chunk.num_tokens) for chunk, state in zip(chunks, states, strict=True)]
    if all(part.ndim == 1 for part in parts):
        return np.concatenate(parts)[None]
    axes = max(len(part) for part in parts if part.ndim == 2)
    return np.concatenate([np.broadcast_to(part, (axes, part.shape[-1])) for part in parts], axis=-1)[:, None]
