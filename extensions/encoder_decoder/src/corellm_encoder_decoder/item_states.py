"""The states of items in a step, to which a decoder attends across beside its own tokens (`get_visible_states`).

A step without such states gives the decoder nothing. Knows tensors and hooks; knows nothing of who owns blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corellm.attention.backend import CrossAttentionMetadata
from corellm.errors import ContractError
from corellm.plugin.hook_callers import adapter_implements
from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch
from corellm.worker.model_runner import ModelRunner
from corellm.worker.sequence_state import SequenceState
from corellm_encoder_decoder.encoder_prompt import StateSlots
from corellm_encoder_decoder.encoder_states import EncoderStates
from corellm_encoder_decoder.item_prompt import VisibleStates


class ItemStates(EncoderStates):
    """Has the decoder attend to items' embeddings as states.

    Args:
        runner: of the model; items go to the states, not into the prompt.
        language_model: the decoder.
    """

    _slots_of_others = StateSlots([], 0, encodes=False)

    def __init__(self, runner: ModelRunner, language_model: nn.Module) -> None:
        super().__init__(runner, language_model, max_states=len(runner.kv_cache.places) * runner.block_size)
        self._ranges = torch.empty(2, 0)

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note where states are and which are seen, also where captured steps look for them."""
        batch, counts = super().lay_out(batch, chunks, states), self._counts(chunks)
        self._replayable = self._replayable and any(counts)  # captured steps are those with states
        if self._captured is not None and self._replayable:
            self._captured.write_seen(*_seen(chunks, states, counts))
        return batch

    @contextmanager
    def capturing(self, batch: FlatBatch) -> Iterator[Mapping[str, Any]]:
        """Yield what the decoder needs of states that `lay_out` writes down, and which tokens see some."""
        assert self._captured is not None
        self._ranges = self._captured.ranges[:, : len(batch.input_ids)]
        with super().capturing(batch) as arguments:
            yield {**arguments, "sees_states": self._captured.sees[: len(batch.input_ids)]}

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Make new items' states; yield what the decoder needs of states, and which tokens see some."""
        if not any(counts := self._counts(chunks)):
            yield {}
            return
        ranges, sees = _seen(chunks, states, counts)
        self._ranges = upload(ranges, self._runner.device)
        with super().running(batch, chunks, states) as arguments:
            yield {**arguments, "sees_states": upload(sees, self._runner.device)}

    def _counts(self, chunks: Sequence[SequenceChunk]) -> list[int]:
        """Return how many states each chunk's request has."""
        return [self._slots_of(chunk).num_states for chunk in chunks]

    def profile(self) -> None:
        """Run nothing: items' encoders are measured by themselves."""

    def _encode(self, chunk: SequenceChunk, state: SequenceState, at: StateSlots) -> Tensor:
        """Return the states of a request's items, `[num_states, hidden_size]`."""
        runner, features = self._runner, state.sequence.features
        embeds = torch.cat([runner.encoders.output(feature) for feature in features])
        if not adapter_implements(runner.hooks.get_encoder_states):
            return embeds
        made = self._states_of(embeds, torch.ones(len(embeds), dtype=torch.bool, device=runner.device), features)
        if made.dim() != 2 or len(made) != at.num_states:
            raise ContractError(
                f"get_encoder_states returned {list(made.shape)} for items with {at.num_states} embeddings; it must "
                f"return [{at.num_states}, hidden_size]"
            )
        return made

    @contextmanager
    def _attending(
        self, batch: FlatBatch, metadata: CrossAttentionMetadata, new_slots: Tensor | None, new: Sequence[Tensor]
    ) -> Iterator[Mapping[str, Any]]:
        with super()._attending(batch, replace(metadata, state_ranges=self._ranges), new_slots, new) as arguments:
            yield arguments


def _seen(
    chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], counts: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return which states each token attends to, `[2, num_tokens]`, and which tokens see any, `[num_tokens]`."""
    parts = [
        visible_ranges(state.sequence.part.get("visible_states", ()), chunk)
        for chunk, state in zip(chunks, states, strict=True)
    ]
    ranges = np.concatenate(parts, axis=1)
    sees = ranges[0] < ranges[1]
    # attention that a model masks out in full is to all, unmasked: what a layer adds then is the decoder's matter
    ends = np.repeat(counts, [chunk.num_tokens for chunk in chunks])
    ranges = np.where(sees, ranges, np.stack([np.zeros_like(ends), ends]))
    return ranges.astype(np.int32), sees


def visible_ranges(visible: Sequence[VisibleStates], chunk: SequenceChunk) -> NDArray[np.int64]:
    """Return which states a chunk's tokens see, `[2, num_tokens]`: from the first number up to the second."""
    ranges = np.zeros((2, chunk.num_tokens), dtype=np.int64)
    for token, start, end in visible:  # each from its token on, until the next one's
        ranges[:, max(0, token - chunk.start) :] = [[start], [end]]
    return ranges
