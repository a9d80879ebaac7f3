"""From a scheduled batch to the tensors of one forward pass: flat token ids, positions, slots, block tables.

Knows block tables and positions; knows neither models nor embeddings. Arithmetic is numpy on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corellm.attention.backend import AttentionMetadata
from corellm.worker.batch import SequenceChunk
from corellm.worker.sequence_state import SequenceState
from corellm.worker.transfers import upload


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
    windowed: AttentionMetadata | None = None
    """`metadata` for layers with a window, where blocks have places of their own; None where they have not."""


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
    visible_lens: NDArray[np.int32] | None = None
    """`[num_tokens]`: how many of its sequence's tokens each sees, where some see tokens behind themselves."""
    span_starts: NDArray[np.int32] | None = None
    """`[num_tokens]`: the first token of the span that each is in, or itself; None where a window cuts spans, too."""
    windowed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """Slots and block tables for layers with a window, where blocks have places of their own."""

    @property
    def num_decodes(self) -> int:
        """How many sequences, from the first on, have one token each that is outside of an uncut span."""
        single = next((i for i, n in enumerate(self.query_lens) if n != 1), len(self.query_lens))
        if self.span_starts is None:
            return single
        outside = self.span_starts[:single] == np.array(self.seq_lens[:single]) - 1
        return int(np.append(outside, False).argmin())

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
            visible_lens=None if self.visible_lens is None else tensor(self.visible_lens),
            span_starts=None if self.span_starts is None else tensor(self.span_starts),
        )
        windowed = None
        if self.windowed is not None:
            slots, tables = map(tensor, self.windowed)
            windowed = replace(metadata, slot_mapping=slots, block_tables=tables)
        return FlatBatch(tensor(self.token_ids), tensor(self.positions), metadata, windowed=windowed)


def lay_out(
    chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], block_size: int, *, windows_cut_spans: bool = True
) -> StepArrays:
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
    spans = _spans(chunks, states, index, windows_cut_spans)
    return StepArrays(token_ids, _positions(chunks, states, index), slots, query_lens, seq_lens, tables, *spans)


def with_places(arrays: StepArrays, block_size: int, places: NDArray[np.int64]) -> StepArrays:
    """Return the arrays with those of layers with a window, where blocks have these places, `[num_blocks]`."""
    slots = places[arrays.slots // block_size] * block_size + arrays.slots % block_size
    return replace(arrays, windowed=(slots, places[arrays.block_tables]))


def _spans(
    chunks: Sequence[SequenceChunk],
    states: Sequence[SequenceState],
    index: NDArray[np.int64],
    windows_cut_spans: bool,
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Return `visible_lens` and `span_starts` of `StepArrays`; None where there is no span.

    A chunk has all tokens of a span but those that were in the prefix cache. The last one alone sees up to itself,
    and only a window that does not cut spans shows that it is in one.
    """
    num_plain = int(windows_cut_spans)  # tokens at a span's end that see as those outside do
    visible = starts = None
    row = 0
    for chunk, state in zip(chunks, states, strict=True):
        spans, stop = state.sequence.spans, chunk.start + chunk.num_tokens
        for start, end in spans if spans and chunk.start < spans[-1][1] - num_plain else ():
            if chunk.start < end - num_plain and start < stop:
                assert end <= stop, f"the chunk [{chunk.start}, {stop}) cuts the span [{start}, {end})"
                if visible is None or starts is None:
                    starts = index.astype(np.int32)
                    visible = starts + 1
                rows = slice(row + max(start - chunk.start, 0), row + end - chunk.start)
                visible[rows], starts[rows] = end, start
        row += chunk.num_tokens
    return visible, None if windows_cut_spans else starts


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
