"""The encoder of an encoder-decoder in a step: new prompts are encoded, then the decoder attends to their states.

Each prompt's encoder runs alone, in the step of its request's first chunk. The keys and values of its states go into
blocks of their own; states themselves are not kept. Knows tensors and hooks; knows nothing of who owns blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend, CrossAttentionMetadata
from corellm.errors import ContractError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch
from corellm.worker.item_embeddings import select_embeddings
from corellm.worker.model_runner import ModelRunner
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
from corellm_encoder_decoder.captured_states import CapturedStates
from corellm_encoder_decoder.cross_attention import CrossAttention, stand_in
from corellm_encoder_decoder.cross_attention_cache import CrossAttentionCache, decoder_arguments
from corellm_encoder_decoder.encoder_prompt import StateSlots


class EncoderStates(StepPart):
    """Runs encoders, and has the decoder attend to their states.

    Args:
        runner: of the model; items go to the encoder, not to the decoder.
        language_model: the decoder.
        max_states: most states of a prompt.
    """

    _slots_of_others = StateSlots([0], 1, encodes=False)
    """Slots of a dummy sequence: one state in the null block."""

    def __init__(self, runner: ModelRunner, language_model: nn.Module, max_states: int) -> None:
        runner.merges_items = False
        self._runner, self._language_model, self._max_states = runner, language_model, max_states
        self._attention: CrossAttention | None = None
        self._captured: CapturedStates | None = None
        self._replayable = False
        if type(runner.backend).cross_attend is AttentionBackend.cross_attend:
            self.uncapturable = f"the attention backend {runner.backend.name!r} leaves attention to states to torch"

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note where states are, also where captured steps look for them."""
        slots = [self._slots_of(chunk) for chunk in chunks]
        self._replayable = (
            self._captured is not None
            and len(slots) == len(batch.input_ids) <= self._captured.num_rows
            and not any(at.encodes for at in slots)
        )
        if self._captured is not None and self._replayable:
            self._captured.write(*_tables(slots, self._runner.block_size))
        return batch

    def is_replayable(self, states: Sequence[SequenceState]) -> bool:
        """Whether the step that was laid out is of single tokens, whose states all are in the cache."""
        return self._replayable

    def reserve_captured(self, num_rows: int) -> None:
        """Take memory for what captured steps read of states."""
        most_blocks, padding = -(-self._max_states // self._runner.block_size), self._slots_of_others.num_states
        self._captured = CapturedStates(num_rows, most_blocks, padding, self._runner.device)

    @contextmanager
    def capturing(self, batch: FlatBatch) -> Iterator[Mapping[str, Any]]:
        """Yield what the decoder needs of states that `lay_out` writes down."""
        assert self._captured is not None
        with self._attending(batch, self._captured.metadata(batch), None, ()) as arguments:
            yield arguments

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Encode new prompts; yield what the decoder needs of states."""
        slots = [self._slots_of(chunk) for chunk in chunks]
        together = zip(chunks, states, slots, strict=True)
        new = [self._encode(chunk, state, at) for chunk, state, at in together if at.encodes]
        with self._attending(batch, self._metadata(batch, slots), self._new_slots(slots), new) as arguments:
            yield arguments

    @contextmanager
    def _attending(
        self, batch: FlatBatch, metadata: CrossAttentionMetadata, new_slots: Tensor | None, new: Sequence[Tensor]
    ) -> Iterator[Mapping[str, Any]]:
        """Yield what the decoder needs of states, those that are `new` and go to slots among them."""
        runner = self._runner
        self._attention = attention = CrossAttention(
            runner.backend, runner.kv_cache.layers, metadata, new_slots, stand_in(runner.device)
        )
        encoded = torch.cat(list(new)) if new else runner.embed_text(batch.input_ids[:1])[:0]
        cache = CrossAttentionCache(batch.positions, attention.keys, attention.write if new else None)
        try:
            yield decoder_arguments(self._language_model, batch.positions, encoded, cache)
        finally:
            self._attention = None

    def attention(self, batch: FlatBatch) -> Mapping[str, Any]:
        """Return how layers attend to states."""
        return {"elsewhere": self._attention}

    def profile(self) -> None:
        """Run the encoder on a prompt with as many states as there can be."""
        ids = torch.zeros(self._max_states, dtype=torch.int64, device=self._runner.device)
        self._states_of(self._runner.embed_text(ids), torch.zeros_like(ids, dtype=torch.bool), ())

    def _encode(self, chunk: SequenceChunk, state: SequenceState, at: StateSlots) -> Tensor:
        """Return the states of a chunk's prompt, `[num_states, hidden_size]`."""
        token_ids: Sequence[int] = state.sequence.part["encoder_prompt"]
        prompt = SequenceChunk(chunk.request_id, 0, len(token_ids), token_ids, (), samples=False, items=chunk.items)
        ids = upload(np.array(token_ids, dtype=np.int64), self._runner.device)
        embeds, extra = self._runner.embed(ids, [prompt], [state])
        if extra:
            raise ContractError(
                f"merge_multimodal_embeddings returned arguments for the forward pass ({', '.join(extra)}), which the "
                f"encoder of an encoder-decoder does not get; return the embeddings alone"
            )
        mask, _ = select_embeddings([prompt], [state], self._runner.encoders.output)
        made = self._states_of(embeds, upload(mask, self._runner.device), state.sequence.features)
        if made.dim() != 2 or len(made) != at.num_states:
            raise ContractError(
                f"get_encoder_states returned {list(made.shape)} for a prompt of {len(token_ids)} tokens; it must "
                f"return [{at.num_states}, hidden_size], or get_decoder_prompt state another num_states"
            )
        return made

    def _states_of(self, embeds: Tensor, is_multimodal: Tensor, features: Sequence[MultiModalFeature]) -> Tensor:
        runner = self._runner
        return runner.hooks.get_encoder_states(
            model=runner.model, inputs_embeds=embeds, is_multimodal=is_multimodal, mm_features=features
        )

    def _metadata(self, batch: FlatBatch, slots: Sequence[StateSlots]) -> CrossAttentionMetadata:
        counts, tables = _tables(slots, self._runner.block_size)
        return CrossAttentionMetadata(
            query_lens=batch.metadata.query_lens,
            query_start_loc=batch.metadata.query_start_loc,
            num_states=[at.num_states for at in slots],
            num_states_tensor=upload(counts, self._runner.device),
            block_tables=upload(tables, self._runner.device),
        )

    def _new_slots(self, slots: Sequence[StateSlots]) -> Tensor | None:
        """Return where the new states go, prompt by prompt, `[num_new_states]`; None if there are none."""
        parts, size = [], self._runner.block_size
        for at in slots:
            if at.encodes:
                index = np.arange(at.num_states)
                blocks = np.array(at.block_table, dtype=np.int64)
                parts.append(blocks[index // size] * size + index % size)
        return upload(np.concatenate(parts), self._runner.device) if parts else None

    def _slots_of(self, chunk: SequenceChunk) -> StateSlots:
        return next((note for note in chunk.notes if isinstance(note, StateSlots)), self._slots_of_others)


def _tables(slots: Sequence[StateSlots], block_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many states each sequence has, `[num_seqs]`, and their blocks, `[num_seqs, most_blocks]`."""
    counts = np.array([at.num_states for at in slots], dtype=np.int64)
    tables = np.zeros((len(slots), -(-counts.max() // block_size)), dtype=np.int64)
    for row, at in zip(tables, slots, strict=True):
        row[: len(at.block_table)] = at.block_table
    return counts, tables
