"""Runs one scheduled batch: encoders, embeddings, the decoder on the paged cache, logits, samples.

Knows tensors and the adapter's hooks; knows nothing of queues, blocks' owners or text. Reads top to bottom like a step:
`launch`, `_compute`, `run`, `forward`, `embed`, `_decode`, from where attention goes on in `attention/paged.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend
from corellm.attention.paged import PagedAttention
from corellm.errors import CorellmError, RequestFailedError
from corellm.plugin.hook_callers import HookCallers
from corellm.sampling.device_sampling import Sample
from corellm.sampling.logprobs import prompt_logprobs
from corellm.sampling.sampler import Sampler
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence, ScheduledBatch, SequenceChunk, StepResult
from corellm.system.devices import for_inference
from corellm.system.failures import failure_of
from corellm.system.transfers import upload, upload_all
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.encoder_runner import EncoderRunner
from corellm.worker.input_batch import FlatBatch, lay_out
from corellm.worker.item_embeddings import select_embeddings
from corellm.worker.kv_cache import KVCache
from corellm.worker.parts.proposals import proposals_of
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState, rope_positions
from corellm.worker.step_in_flight import StepInFlight

logger = logging.getLogger(__name__)


class ModelRunner:
    """Owns the model, the KV cache, encoder outputs and every running sequence's state.

    Args:
        hooks: the model's hook callers.
        model: the loaded model.
        language_model: the text decoder inside it.
        kv_cache: its layers' caches.
        backend: the attention backend.
        block_size: slots per block.
        embedding_width: width of the embeddings that `get_multimodal_embeddings` returns; None for that of the first.
        dtype, device: of the model.
        new_sampling: makes the sampling state of a sequence.
        vocab_size: tokens below can be sampled, and have an embedding.
        sample: an extension's function that chooses tokens, or None.
        make_parts: makes what runs beside the decoder, of this object.

    Attributes:
        graphs: decode steps as graphs, where `capture_graphs` could make some.
        samples: whether steps end in sampled tokens.
        trims: whether the decoder may leave out tokens behind its last attention; `check_trimming` finds out.
        merges_items: whether items' embeddings go to the decoder; a part may take them instead.
    """

    samples = True
    trims = False
    merges_items = True

    def __init__(
        self,
        hooks: HookCallers,
        model: nn.Module,
        language_model: nn.Module,
        kv_cache: KVCache,
        backend: AttentionBackend,
        *,
        block_size: int,
        embedding_width: int | None,
        dtype: torch.dtype,
        device: torch.device,
        new_sampling: Callable[[NewSequence], SamplingState],
        vocab_size: int,
        sample: Sample | None = None,
        make_parts: Callable[[ModelRunner], Sequence[StepPart]] = lambda runner: (),
    ) -> None:
        self.hooks, self.model, self._language_model = hooks, model, language_model
        self.kv_cache, self.backend = kv_cache, backend
        self.block_size, self.device, self._new_sampling = block_size, device, new_sampling
        self.encoders = EncoderRunner(hooks, model, embedding_width, dtype, device, self._encoding)
        self.sampler = Sampler(sample)
        self._states: dict[str, SequenceState] = {}
        self.graphs: DecodeGraphs | None = None
        self.parts = make_parts(self)
        self._proposals = proposals_of(self.parts, device, vocab_size) if self.samples else None

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Run one step and wait for its result; requests that failed are in its `failed`."""
        return self.launch(batch).wait()

    def touch_cache(self, num_tokens: int) -> None:
        """Take memory for the KV cache of the first tokens."""
        self.kv_cache.touch(-(-num_tokens // self.block_size))

    def forget(self) -> None:
        """Drop every sequence and encoder output, after a step was interrupted."""
        self._states.clear()
        self.encoders.drop_all()
        for part in self.parts:
            part.forget()

    def drop_graphs(self) -> None:
        """Forget captured steps and encoders."""
        self.graphs = None
        self.encoders.drop_graphs()

    @for_inference
    def launch(self, batch: ScheduledBatch) -> StepInFlight:
        """Run one step as `execute` does, without waiting for its tokens."""
        step = StepInFlight(batch, self._states, self._proposals)
        if batch.swap_out:
            self.kv_cache.swap_out(batch.swap_out)
        self._begin(step)
        if batch.swap_in:
            self.kv_cache.swap_in(batch.swap_in)
        for request_id in batch.released:
            self._states.pop(request_id, None)
        if batch.freed_items:
            self.encoders.drop(batch.freed_items)

        for sequence in batch.new:
            self._admit(sequence, step.result)
        if batch.encode:
            self.encoders.launch([self._states[name].sequence.features[index] for name, index in batch.encode])
            step.settle = self._settle
        chunks = [chunk for chunk in batch.chunks if self._is_encoded(chunk, step.result)]
        if chunks:
            self._compute(chunks, step)
        return step

    @for_inference
    def launch_ahead(self, batch: ScheduledBatch, before: StepInFlight) -> StepInFlight:
        """Run a step of single tokens that `before`, a captured step and the last one launched, is still sampling.

        Its own tokens may have to wait for those: `sample_ahead` chooses them.
        """
        assert self.graphs is not None
        assert before.tokens is not None
        step = StepInFlight(batch, self._states, self._proposals)
        self._begin(step)
        states = [self._states[chunk.request_id] for chunk in batch.chunks]
        token_ids = before.tokens.token_ids
        if len(batch.chunks) < len(before.chunks):
            rows = {chunk.request_id: row for row, chunk in enumerate(before.chunks)}
            kept = np.array([rows[chunk.request_id] for chunk in batch.chunks])
            token_ids = token_ids[upload(kept, self.device)]
        # a failed row has -1; its next token is dropped
        logits = self.graphs.run(self.lay_out(batch.chunks, states), token_ids.clamp(min=0))
        step.chunks, step.in_flight = batch.chunks, self._runs_ahead
        if any(state.sampling.looks_back for state in states):
            step.logits = logits
        else:
            self._sample_ahead(step, logits, ahead=1)
        return step

    @for_inference
    def sample_ahead(self, step: StepInFlight, running: Container[str]) -> StepInFlight:
        """Choose the tokens of a step that was launched ahead, if they had to wait for those before them.

        Args:
            step: the last one launched.
            running: requests that go on, whose last tokens now are among their outputs; the others get none.

        Returns:
            The step.
        """
        logits, step.logits = step.logits, None
        if logits is None:
            return step
        rows = [row for row, chunk in enumerate(step.chunks) if chunk.request_id in running]
        if len(rows) < len(step.chunks):
            step.chunks = [step.chunks[row] for row in rows]
            logits = logits[upload(np.array(rows, dtype=np.int64), self.device)]
        if rows:
            self._sample_ahead(step, logits)
        return step

    def _sample_ahead(self, step: StepInFlight, logits: Tensor, ahead: int = 0) -> None:
        states = [self._states[chunk.request_id].sampling for chunk in step.chunks]
        step.tokens = self.sampler.start(logits, states, ahead=ahead)
        for part in self.parts:
            part.commit()

    @property
    def _runs_ahead(self) -> bool:
        """Whether the step after one in flight need not wait for drafts."""
        return self._proposals is None or self._proposals.rests

    def _begin(self, step: StepInFlight) -> None:
        for part in self.parts:
            if failed := part.begin(step.batch):
                step.result.failed |= {
                    chunk.request_id: failed[chunk.request_id]
                    for chunk in step.batch.chunks
                    if chunk.request_id in failed
                }

    # --- sequences and their items ----------------------------------------------------------------------------------

    def new_state(self, sequence: NewSequence) -> SequenceState:
        """The state of a sequence of which nothing is computed yet."""
        return SequenceState(sequence, self._new_sampling(sequence))

    def _admit(self, sequence: NewSequence, result: StepResult) -> None:
        state = self._states[sequence.request_id] = self.new_state(sequence)
        if not sequence.features or not self.merges_items:
            return
        try:
            positions = rope_positions(self.hooks, self.model, sequence.prompt_token_ids, sequence.features)
            if positions is not None:
                state.prompt_positions, state.position_offset = positions
        except Exception as error:
            result.failed[sequence.request_id] = failure_of("get_rope_positions", error, RequestFailedError)

    def _settle(self, step: StepInFlight) -> None:
        """Fail the requests of items whose embeddings are not finite, which only now is known."""
        if not self.encoders.settle():
            return
        result = step.result
        for chunk in step.batch.chunks:
            error = self._encoder_failure(chunk)
            if error is not None:  # what failed behind its embeddings did so because of them
                result.failed[chunk.request_id] = error
                result.prompt_logprobs.pop(chunk.request_id, None)
                result.made.pop(chunk.request_id, None)

    def _is_encoded(self, chunk: SequenceChunk, result: StepResult) -> bool:
        """Whether a chunk can be computed: its request has not failed, and does not because of an item's encoder."""
        if chunk.items and (error := self._encoder_failure(chunk)) is not None:
            result.failed.setdefault(chunk.request_id, error)
        return chunk.request_id not in result.failed

    def _encoder_failure(self, chunk: SequenceChunk) -> CorellmError | None:
        """Return why an item of a chunk has no embeddings; None if all have."""
        try:
            for item in chunk.items:
                self.encoders.output(self._states[chunk.request_id].sequence.features[item.index])
        except CorellmError as error:
            return error.with_traceback(None)  # its frames hold the embeddings
        return None

    def lay_out(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Return a step on the host."""
        batch = lay_out(chunks, states, self.block_size)
        for part in self.parts:
            batch = part.lay_out(batch, chunks, states)
        return batch

    # --- the forward pass -------------------------------------------------------------------------------------------

    def _compute(self, chunks: Sequence[SequenceChunk], step: StepInFlight) -> None:
        """Run the forward pass and sample. If that fails, each chunk runs alone, so that only the failing ones fail.

        Running a chunk again writes the same keys and values to the same slots and draws the same random numbers.
        Parts go on only when the chunk has run.
        """
        try:
            self.run(chunks, [self._states[chunk.request_id] for chunk in chunks], step)
            for part in self.parts:
                part.commit()
            return
        except Exception as error:
            if len(chunks) == 1:
                step.result.failed[chunks[0].request_id] = failure_of("the forward pass", error, RequestFailedError)
                return
            logger.warning("a step of %d requests failed; running them one by one", len(chunks), exc_info=error)
        for chunk in chunks:  # outside `except`: the error holds the failed step's tensors
            if chunk.request_id not in step.result.failed:
                self._compute([chunk], step)
                step.wait()

    def run(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], step: StepInFlight) -> None:
        """Run one forward pass; sample a token for every chunk that ends its sequence, and for each of its drafts."""
        given = chunks
        if self._proposals is not None and any(chunk.num_drafts for chunk in chunks):
            chunks, states = _token_by_token(chunks, states)
        batch = self.lay_out(chunks, states)
        ending = [i for i, chunk in enumerate(chunks) if chunk.samples]
        graphs = self.graphs
        if graphs is not None and graphs.fits(batch) and self._is_replayable(chunks, states):
            logits = graphs.run(batch)
            # the scheduler knows nothing yet of chunks that failed before the forward pass
            is_whole = len(given) == len(step.batch.chunks)
            step.in_flight = graphs.asynchronous and is_whole and self._runs_ahead
        else:
            ends = np.cumsum([chunk.num_tokens for chunk in chunks]) - 1
            outputs = upload(ends[ending or [0]], self.device)
            on_device = replace(upload_all(batch, self.device), outputs=None if _scores_prompts(states) else outputs)
            hidden = self.forward(on_device, chunks, states)
            self._add_prompt_logprobs(chunks, states, hidden, step.result)
            if not ending:
                return
            logits = self.score(hidden if len(hidden) == len(outputs) else hidden[outputs], [states[i] for i in ending])
        step.tokens = self.sampler.start(logits, [states[i].sampling for i in ending])
        step.chunks = [chunk for chunk in given if chunk.samples]

    def _is_replayable(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> bool:
        return _is_plain_decode(chunks, states) and all(part.is_replayable(states) for part in self.parts)

    def forward(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> Tensor:
        """Return the hidden states of the flat batch, `[num_tokens, hidden_size]`, or of its outputs alone."""
        # else a part has the items
        inputs_embeds, extra = self.embed(batch.input_ids, chunks if self.merges_items else (), states)
        with ExitStack() as around:
            for part in self.parts:
                extra = {**extra, **around.enter_context(part.running(batch, chunks, states))}
            return self._decode(batch, inputs_embeds, extra)

    def embed(
        self, input_ids: Tensor, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the tokens' embeddings `[num_tokens, hidden_size]`, items merged in, and extra decoder arguments."""
        if not any(chunk.items for chunk in chunks):
            return self.embed_text(input_ids), {}
        mask, selected = select_embeddings(chunks, states, self.encoders.output)
        is_multimodal = upload(mask, self.device)
        # placeholder ids may lie outside the embedding table; their embeddings are overwritten
        text_ids = input_ids.masked_fill(is_multimodal, 0)
        merged = self.hooks.merge_multimodal_embeddings(
            inputs_embeds=self.embed_text(text_ids),
            multimodal_embeddings=torch.cat(selected),
            is_multimodal=is_multimodal,
        )
        return merged if isinstance(merged, tuple) else (merged, {})

    def embed_text(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings of tokens, `[num_tokens, hidden_size]`."""
        return self.hooks.get_input_embeddings(model=self.model, input_ids=input_ids)

    def _decode(self, batch: FlatBatch, inputs_embeds: Tensor, extra: Mapping[str, Any]) -> Tensor:
        outputs = batch.outputs if self.trims and not extra else None  # further arguments may be of all tokens
        hidden: Tensor = self._language_model(
            inputs_embeds=inputs_embeds[None],
            position_ids=batch.positions,
            paged=self._paged(batch, outputs),
            **{"use_cache": False, **extra},
        )[0][0]
        return hidden

    def _paged(self, batch: FlatBatch, outputs: Tensor | None) -> PagedAttention:
        of_parts = {name: value for part in self.parts for name, value in part.attention(batch).items()}
        return PagedAttention(self.backend, self.kv_cache.layers, batch.metadata, outputs, batch.of_layers, **of_parts)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, `[num_seqs, vocab]`."""
        return self.hooks.compute_logits(model=self.model, hidden_states=hidden)

    def score(self, hidden: Tensor, states: Sequence[SequenceState]) -> Tensor:
        """Return the logits of hidden states of these sequences, one of each, or all of one."""
        with ExitStack() as around:
            for part in self.parts:
                around.enter_context(part.scoring(states))
            return self.logits(hidden)

    @contextmanager
    def _encoding(self, variant: str) -> Iterator[None]:
        with ExitStack() as around:
            for part in self.parts:
                around.enter_context(part.encoding(variant))
            yield

    def text_logits(self, batch: FlatBatch) -> Tensor:
        """Return the logits of every token of a batch without items: what a graph captures."""
        inputs_embeds, extra = self.embed_text(batch.input_ids), dict[str, Any]()
        with ExitStack() as around:
            for part in self.parts:
                extra |= around.enter_context(part.capturing(batch))
            hidden = self._decode(batch, inputs_embeds, extra)
        return self.logits(hidden)

    def _add_prompt_logprobs(
        self,
        chunks: Sequence[SequenceChunk],
        states: Sequence[SequenceState],
        hidden: Tensor,
        result: StepResult,
    ) -> None:
        """Add log-probabilities of prompt tokens, for requests that want them and are in their prompt."""
        firsts = np.cumsum([0, *(chunk.num_tokens for chunk in chunks[:-1])]).tolist()
        for chunk, state, first in zip(chunks, states, firsts, strict=True):
            num_top = state.sequence.sampling_params.prompt_logprobs
            targets = state.sequence.prompt_token_ids[chunk.start + 1 : chunk.start + chunk.num_tokens + 1]
            if num_top is None or not targets or state.sequence.output_token_ids:
                continue
            wanted = upload(np.array(targets, dtype=np.int64), self.device)
            result.prompt_logprobs[chunk.request_id] = prompt_logprobs(
                partial(self.score, states=[state]), hidden[first : first + len(targets)], wanted, num_top
            )


def _is_plain_decode(chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> bool:
    """Whether a step of single tokens has text only, samples after each, and returns no prompt log-probabilities."""
    return all(chunk.samples and not chunk.items for chunk in chunks) and not _scores_prompts(states)


def _token_by_token(
    chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
) -> tuple[list[SequenceChunk], list[SequenceState]]:
    """Return a step with a chunk for each token of those with drafts, and each one's state, as if they were right.

    So many sequences of one token, whose keys and values all are written before any is read: with drafts, too, a step
    of decodes can be a graph.
    """
    rows = [chunk.one_by_one() if chunk.num_drafts else [chunk] for chunk in chunks]
    along = [
        [state, *(replace(state, sampling=sampling) for sampling in state.sampling.along(chunk.drafts)[1:])]
        for chunk, state in zip(chunks, states, strict=True)
    ]
    return [*chain.from_iterable(rows)], [*chain.from_iterable(along)]


def _scores_prompts(states: Sequence[SequenceState]) -> bool:
    return any(state.sequence.sampling_params.prompt_logprobs is not None for state in states)
