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
from torch import Tensor, nn

from corellm.attention.backend import CrossAttentionMetadata
from corellm.errors import ContractError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch
from corellm.worker.item_embeddings import select_embeddings
from corellm.worker.model_runner import ModelRunner
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
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

    uncapturable = "the model is an encoder-decoder"
    _slots_of_others = StateSlots([0], 1, encodes=False)
    """Slots of a dummy sequence: one state in the null block."""

    def __init__(self, runner: ModelRunner, language_model: nn.Module, max_states: int) -> None:
        runner.merges_items = False
        self._runner, self._language_model, self._max_states = runner, language_model, max_states
        self._attention: CrossAttention | None = None

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Encode new prompts; yield what the decoder needs of states."""
        runner, slots = self._runner, [self._slots_of(chunk) for chunk in chunks]
        together = zip(chunks, states, slots, strict=True)
        new = [self._encode(chunk, state, at) for chunk, state, at in together if at.encodes]
        metadata = self._metadata(batch, slots)
        self._attention = attention = CrossAttention(
            runner.backend, runner.kv_cache.layers, metadata, self._new_slots(slots), stand_in(runner.device)
        )
        encoded = torch.cat(new) if new else runner.embed_text(batch.input_ids[:1])[:0]
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
        counts = [at.num_states for at in slots]
        tables = np.zeros((len(slots), -(-max(counts) // self._runner.block_size)), dtype=np.int64)
        for row, at in zip(tables, slots, strict=True):
            row[: len(at.block_table)] = at.block_table
        return CrossAttentionMetadata(
            query_lens=batch.metadata.query_lens,
            query_start_loc=batch.metadata.query_start_loc,
            num_states=counts,
            num_states_tensor=upload(np.array(counts, dtype=np.int64), self._runner.device),
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
