"""Runs the steps of encoder-decoders: encoders of new prompts, then the decoder, which attends to their states.

Each prompt's encoder runs alone, in the step of its request's first chunk. The keys and values of its states go into
blocks of their own; states themselves are not kept. Knows tensors and hooks; knows nothing of who owns blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corellm.attention.backend import StatesMetadata
from corellm.attention.paged import PagedAttention
from corellm.attention.states import StatesAttention, stand_in
from corellm.errors import ContractError
from corellm.worker.batch import SequenceChunk, StateSlots
from corellm.worker.input_batch import FlatBatch
from corellm.worker.item_embeddings import select_embeddings
from corellm.worker.model_runner import ModelRunner
from corellm.worker.sequence_state import SequenceState
from corellm.worker.states_cache import StatesCache, run_decoder
from corellm.worker.transfers import upload

_NULL = StateSlots([0], 1, encodes=False)
"""Of dummy sequences: one state in the null block."""


class EncoderDecoderRunner(ModelRunner):
    """Runs an encoder-decoder.

    Args:
        max_states: most states of a prompt.
        args, kwargs: of `ModelRunner`.
    """

    def __init__(self, max_states: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_states = max_states

    def forward(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> Tensor:
        """Return the hidden states of the flat batch, `[num_tokens, hidden_size]`."""
        slots = [chunk.states or _NULL for chunk in chunks]
        together = zip(chunks, states, slots, strict=True)
        new = [self._encode(chunk, state) for chunk, state, at in together if at.encodes]
        embeds = self._embed_text(batch.input_ids)
        attention = StatesAttention(
            self._backend, self._kv_cache.layers, self._metadata(batch, slots), self._new_slots(slots),
            stand_in(self.device),
        )  # fmt: skip
        return run_decoder(
            self._language_model,
            embeds,
            batch.positions,
            torch.cat(new) if new else embeds[:0],
            StatesCache(batch.positions, attention.keys, attention.write if new else None),
            PagedAttention(self._backend, self._kv_cache.layers, batch.metadata, states=attention),
        )

    def profile_prompt_encoder(self) -> None:
        """Run the encoder on a prompt with as many states as there can be."""
        ids = torch.zeros(self._max_states, dtype=torch.int64, device=self.device)
        self._states_of(self._embed_text(ids), torch.zeros_like(ids, dtype=torch.bool))

    def _encode(self, chunk: SequenceChunk, state: SequenceState) -> Tensor:
        """Return the states of a chunk's prompt, `[num_states, hidden_size]`."""
        token_ids = state.sequence.encoder_token_ids
        assert token_ids is not None
        assert chunk.states is not None
        prompt = SequenceChunk(chunk.request_id, 0, len(token_ids), token_ids, (), samples=False, items=chunk.items)
        ids = upload(np.array(token_ids, dtype=np.int64), self.device)
        embeds, extra = self._embed(ids, [prompt], [state])
        if extra:
            raise ContractError(
                f"merge_multimodal_embeddings returned arguments for the forward pass ({', '.join(extra)}), which the "
                f"encoder of an encoder-decoder does not get; return the embeddings alone"
            )
        mask, _ = select_embeddings([prompt], [state], self.encoders.output)
        made = self._states_of(embeds, upload(mask, self.device))
        if made.dim() != 2 or len(made) != chunk.states.num_states:
            raise ContractError(
                f"get_encoder_states returned {list(made.shape)} for a prompt of {len(token_ids)} tokens; it must "
                f"return [{chunk.states.num_states}, hidden_size], or get_decoder_prompt state another num_states"
            )
        return made

    def _states_of(self, embeds: Tensor, is_multimodal: Tensor) -> Tensor:
        return self.hooks.get_encoder_states(model=self.model, inputs_embeds=embeds, is_multimodal=is_multimodal)

    def _metadata(self, batch: FlatBatch, slots: Sequence[StateSlots]) -> StatesMetadata:
        counts = [at.num_states for at in slots]
        tables = np.zeros((len(slots), -(-max(counts) // self.block_size)), dtype=np.int64)
        for row, at in zip(tables, slots, strict=True):
            row[: len(at.block_table)] = at.block_table
        return StatesMetadata(
            query_lens=batch.metadata.query_lens,
            query_start_loc=batch.metadata.query_start_loc,
            num_states=counts,
            num_states_tensor=upload(np.array(counts, dtype=np.int64), self.device),
            block_tables=upload(tables, self.device),
        )

    def _new_slots(self, slots: Sequence[StateSlots]) -> Tensor | None:
        """Return where the new states go, prompt by prompt, `[num_new_states]`; None if there are none."""
        parts = []
        for at in slots:
            if at.encodes:
                index = np.arange(at.num_states)
                blocks = np.array(at.block_table, dtype=np.int64)
                parts.append(blocks[index // self.block_size] * self.block_size + index % self.block_size)
        return upload(np.concatenate(parts), self.device) if parts else None
