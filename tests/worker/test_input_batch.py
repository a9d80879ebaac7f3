"""The flat batch: slots, positions and tables against a token-by-token computation."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from corellm.sampling.sampling_state import SamplingState
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence, SequenceChunk
from corellm.worker.input_batch import FlatBatch, lay_out
from corellm.worker.parts.spans import Spans
from corellm.worker.sequence_state import SequenceState

CPU = torch.device("cpu")


def make_state(prompt_len: int = 8) -> SequenceState:
    sequence = NewSequence("r", list(range(prompt_len)), [], SamplingParams(), [])
    return SequenceState(sequence, SamplingState(sequence, 100, 0))


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_slots_positions_and_tables(spans: list[tuple[int, int]], block_size: int) -> None:
    """Token t of a sequence sits in block t // size at offset t % size, and has position t."""
    spans.sort(key=lambda span: span[1] != 1)
    chunks, states, slots, positions, ids = [], [], [], [], []
    next_block = 1
    for start, n in spans:
        blocks = -(-(start + n) // block_size)
        table = list(range(next_block, next_block + blocks))[::-1]
        next_block += blocks
        tokens = [7 * t + start for t in range(start, start + n)]
        chunks.append(SequenceChunk("r", start, n, tokens, table, samples=True))
        states.append(make_state())
        slots += [table[t // block_size] * block_size + t % block_size for t in range(start, start + n)]
        positions += list(range(start, start + n))
        ids += tokens
    flat = lay_out(chunks, states, block_size)
    assert flat.input_ids.tolist() == ids
    assert flat.positions.tolist() == [positions]
    assert flat.metadata.slot_mapping.tolist() == slots
    assert flat.metadata.num_decodes == sum(n == 1 for _, n in spans)
    assert flat.metadata.seq_lens == [start + n for start, n in spans]
    assert flat.metadata.query_start_loc.tolist() == [0, *np.cumsum([n for _, n in spans])]
    for row, chunk in zip(flat.metadata.block_tables.tolist(), chunks, strict=True):
        assert row[: len(chunk.block_table)] == list(chunk.block_table)
        assert not any(row[len(chunk.block_table) :])


def test_block_table_grows_with_the_engine() -> None:
    """The worker copies only new entries, far beyond its first room."""
    state, table = make_state(), []
    for step in range(100):
        table.append(1000 - step)
        chunk = SequenceChunk("r", step, 1, [5], table, samples=True)
        flat = lay_out([chunk], [state], 1)
        assert flat.metadata.block_tables.tolist() == [table]


def test_mrope_positions_and_decode_offset() -> None:
    """Three rows for the prompt, then counting on from the offset; text sequences beside it get three equal rows."""
    mrope = make_state(4)
    mrope.prompt_positions = np.array([[0, 1, 1, 2], [0, 1, 2, 2], [0, 1, 1, 2]])
    mrope.position_offset = -1
    chunks = [
        SequenceChunk("text", 9, 1, [1], [1, 2, 3], samples=True),
        SequenceChunk("mrope", 2, 4, [1, 2, 3, 4], [4, 5], samples=True),
    ]
    flat = lay_out(chunks, [make_state(), mrope], 4)
    assert flat.positions.shape == (3, 1, 5)
    assert flat.positions[:, 0].tolist() == [[9, 1, 2, 3, 4], [9, 2, 2, 3, 4], [9, 1, 2, 3, 4]]


def with_spans(chunks: list[SequenceChunk], states: list[SequenceState], *, windows_cut: bool = True) -> FlatBatch:
    """A step of a model that has spans."""
    return Spans(frozenset(), windows_cut=windows_cut).lay_out(lay_out(chunks, states, 1), chunks, states)


def test_tokens_of_a_span_see_it_to_its_end() -> None:
    """A span's tokens in a chunk see it to its end, even if it began in the prefix cache; others up to themselves."""
    state, other = make_state(12), make_state(4)
    state.sequence.part = {"spans": [(2, 5), (7, 10)]}
    table = list(range(1, 13))
    decode = SequenceChunk("o", 3, 1, [5], table, samples=True)
    within = SequenceChunk("r", 3, 7, [5] * 7, table, samples=False)
    flat = with_spans([decode, within], [other, state])
    assert flat.metadata.visible_lens is not None
    assert flat.metadata.visible_lens.tolist() == [4, 5, 5, 6, 7, 10, 10, 10]
    assert flat.metadata.span_starts is None
    uncut = with_spans([decode, within], [other, state], windows_cut=False)
    assert uncut.metadata.span_starts is not None
    assert uncut.metadata.span_starts.tolist() == [3, 2, 2, 5, 6, 7, 7, 7]
    before = SequenceChunk("r", 0, 2, [5] * 2, table, samples=False)
    behind = SequenceChunk("r", 10, 2, [5] * 2, table, samples=True)
    assert with_spans([before], [state]).metadata.visible_lens is None
    assert with_spans([behind], [state]).metadata.visible_lens is None
