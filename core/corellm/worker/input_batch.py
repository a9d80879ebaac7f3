"""From a scheduled batch to the tensors of one forward pass: flat token ids, positions, slots, block tables.

Knows block tables and positions; knows neither models nor embeddings. Arithmetic is numpy on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corellm.attention.backend import AttentionMetadata
from corellm.scheduling.batch import SequenceChunk
from corellm.worker.sequence_state import SequenceState


@dataclass(frozen=True)
class FlatBatch:
    """The tensors of one forward pass. They are made on the host, where parts add theirs, and copied at once."""

    input_ids: Tensor
    """`[num_tokens]`."""
    positions: Tensor
    """`[1, num_tokens]`, or `[axes, 1, num_tokens]` for M-RoPE."""
    metadata: AttentionMetadata
    outputs: Tensor | None = None
    """`[num_outputs]`: the tokens whose hidden states are used; None for all."""
    of_layers: Mapping[int, AttentionMetadata] = field(default_factory=dict)
    """What parts tell single layers instead of `metadata`; one object for all that are told the same."""


def lay_out(chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], block_size: int) -> FlatBatch:
    """Return a step on the host: its chunks one after another, single-token ones first; states are in their order."""
    query_lens = [chunk.num_tokens for chunk in chunks]
    seq_lens = [chunk.start + chunk.num_tokens for chunk in chunks]
    tables = np.zeros((len(chunks), -(-max(seq_lens) // block_size)), dtype=np.int64)
    for row, chunk, state, seq_len in zip(tables, chunks, states, seq_lens, strict=True):
        needed = -(-seq_len // block_size)
        row[:needed] = state.sync_blocks(chunk.block_table, needed)

    starts = np.cumsum([0, *query_lens], dtype=np.int32)
    rows = np.repeat(np.arange(len(chunks)), query_lens)
    # token t of the batch is token `index[t]` of its sequence
    index = np.arange(starts[-1]) + np.repeat(seq_lens - starts[1:], query_lens)
    slots = tables[rows, index // block_size] * block_size + index % block_size
    tokens = chain.from_iterable(chunk.token_ids for chunk in chunks)
    token_ids = np.fromiter(tokens, dtype=np.int64, count=len(index))
    metadata = AttentionMetadata(
        num_decodes=next((i for i, n in enumerate(query_lens) if n != 1), len(query_lens)),
        query_lens=query_lens,
        seq_lens=seq_lens,
        query_start_loc=torch.from_numpy(starts),
        seq_lens_tensor=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.from_numpy(tables),
        slot_mapping=torch.from_numpy(slots),
    )
    positions = _positions(chunks, states, index)
    return FlatBatch(torch.from_numpy(token_ids), torch.from_numpy(positions), metadata)


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
