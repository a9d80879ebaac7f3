"""Runs one scheduled batch: encoders, embeddings, the decoder on the paged cache, logits, samples.

Knows tensors and the adapter's hooks; knows nothing of queues, blocks' owners or text. `execute` reads top to bottom
like a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend
from corellm.attention.paged import PagedAttention
from corellm.errors import ContractError, CorellmError, RequestFailedError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams
from corellm.worker.batch import NewSequence, ScheduledBatch, SequenceChunk, StepResult
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.device_sampling import Sample
from corellm.worker.devices import on_device
from corellm.worker.encoder_runner import EncoderRunner
from corellm.worker.failures import failure_of
from corellm.worker.graphs import Graph, NotCapturable
from corellm.worker.in_flight_step import InFlightStep
from corellm.worker.input_batch import FlatBatch, SequenceState, lay_out
from corellm.worker.item_embeddings import Embeddings, rows_of, touched
from corellm.worker.kv_cache import KVCache
from corellm.worker.logprobs import prompt_logprobs
from corellm.worker.sampler import Sampler
from corellm.worker.sampling_state import SamplingState
from corellm.worker.transfers import upload

logger = logging.getLogger(__name__)

_PROFILED_PARAMS = [
    SamplingParams(**choice, **edits)  # type: ignore[arg-type]
    for choice in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9})
    for edits in ({}, {"repetition_penalty": 1.1, "logit_bias": {0: 1.0}, "allowed_token_ids": [0], "logprobs": 1})
]
"""Every way to choose tokens: their kernels are compiled before anybody waits for them."""


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def _for_inference(
    method: Callable[Concatenate[ModelRunner, _Arguments], _Answer],
) -> Callable[Concatenate[ModelRunner, _Arguments], _Answer]:
    """Runs a method of the runner on its device, without gradients."""

    @wraps(method)
    def run(runner: ModelRunner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        with on_device(runner.device), torch.inference_mode():
            return method(runner, *args, **kwargs)

    return run


class ModelRunner:
    """Owns the model, the KV cache, encoder outputs and every running sequence's state.

    Args:
        hooks: the model's hook callers.
        model: what `load_model` gave.
        language_model: the text decoder inside it.
        kv_cache: its layers' caches.
        backend: the attention backend.
        block_size: slots per block.
        vocab_size: width of the logits.
        embedding_width: columns of a row that `get_multimodal_embeddings` gives.
        dtype, device: of the model.
        seed: of requests that bring none.
        sample: an extension's way to choose tokens, or None.
    """

    def __init__(
        self,
        hooks: Any,
        model: nn.Module,
        language_model: nn.Module,
        kv_cache: KVCache,
        backend: AttentionBackend,
        *,
        block_size: int,
        vocab_size: int,
        embedding_width: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
        sample: Sample | None = None,
    ) -> None:
        self._hooks, self.model, self._language_model = hooks, model, language_model
        self._kv_cache, self._backend = kv_cache, backend
        self._block_size, self._vocab_size, self.device, self._seed = block_size, vocab_size, device, seed
        self.encoders = EncoderRunner(hooks, model, embedding_width, dtype, device)
        self._sampler = Sampler(sample)
        self._states: dict[str, SequenceState] = {}
        self._graphs: DecodeGraphs | None = None

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Run one step.

        Whatever fails, fails the requests it belongs to: they are in the result's `failed`.
        """
        return self.launch(batch).wait()

    def forget(self) -> None:
        """Drop every sequence and encoder output, after a step that was interrupted: the engine begins anew."""
        self._states.clear()
        self.encoders.drop_all()

    @_for_inference
    def launch(self, batch: ScheduledBatch) -> InFlightStep:
        """Run one step, without waiting for the device where that is not needed; as `execute` otherwise."""
        self._kv_cache.swap_out(batch.swap_out)
        self._kv_cache.swap_in(batch.swap_in)
        for request_id in batch.released:
            self._states.pop(request_id, None)
        self.encoders.drop(batch.freed_items)

        result = StepResult()
        for sequence in batch.new:
            self._admit(sequence, result)
        self.encoders.run(self._features_to_encode(batch))
        embeddings = self._gather_embeddings(batch.chunks, result)
        chunks = [chunk for chunk in batch.chunks if chunk.request_id not in result.failed]
        pending = InFlightStep(result, self._states)
        if chunks:
            self._compute(chunks, embeddings, pending)
        return pending

    @_for_inference
    def launch_ahead(self, batch: ScheduledBatch, before: InFlightStep) -> InFlightStep:
        """Run a step of single tokens that `before`, a captured step and the last one launched, is about to sample."""
        assert self._graphs is not None
        assert before.tokens is not None
        states = [self._states[chunk.request_id] for chunk in batch.chunks]
        token_ids = before.tokens.token_ids
        if len(batch.chunks) < len(before.chunks):
            rows = {chunk.request_id: row for row, chunk in enumerate(before.chunks)}
            kept = np.array([rows[chunk.request_id] for chunk in batch.chunks])
            token_ids = token_ids[upload(kept, self.device)]
        arrays = lay_out(batch.chunks, states, self._block_size)
        logits = self._graphs.run(arrays, token_ids.clamp(min=0))  # of a row that failed nobody wants the next token
        pending = InFlightStep(StepResult(), self._states)
        pending.chunks, pending.is_captured = batch.chunks, True
        pending.tokens = self._sampler.start(logits, [state.sampling for state in states], ahead=1)
        return pending

    def _compute(self, chunks: Sequence[SequenceChunk], embeddings: Embeddings, pending: InFlightStep) -> None:
        """Forward pass and sampling. If that fails, each chunk runs alone, so that only the guilty ones fail.

        Running a chunk again writes the same keys and values to the same slots and draws the same random numbers.
        """
        try:
            self._run(chunks, [self._states[chunk.request_id] for chunk in chunks], embeddings, pending)
            return
        except Exception as error:
            if len(chunks) == 1:
                pending.result.failed[chunks[0].request_id] = failure_of("the forward pass", error, RequestFailedError)
                return
            logger.warning("a step of %d requests failed; running them one by one", len(chunks), exc_info=error)
        for chunk in chunks:  # not before the error is gone: it holds the failed step's tensors
            self._compute([chunk], embeddings, pending)
            pending.wait()

    def _run(
        self,
        chunks: Sequence[SequenceChunk],
        states: Sequence[SequenceState],
        embeddings: Embeddings,
        pending: InFlightStep,
    ) -> None:
        """One forward pass, and a token for every chunk that ends its sequence."""
        arrays = lay_out(chunks, states, self._block_size)
        if self._graphs is not None and self._graphs.fits(arrays) and _is_plain_decode(chunks, states, embeddings):
            logits, ending, is_captured = self._graphs.run(arrays), list(range(len(chunks))), True
        else:
            hidden = self._forward(arrays.to(self.device), chunks, embeddings)
            ends = np.cumsum(arrays.query_lens) - 1
            self._prompt_logprobs(chunks, states, hidden, ends, pending.result)
            ending = [i for i, chunk in enumerate(chunks) if chunk.samples]
            if not ending:
                return
            logits, is_captured = self._logits(hidden[upload(ends[ending], self.device)]), False
        pending.tokens = self._sampler.start(logits, [states[i].sampling for i in ending])
        pending.chunks, pending.is_captured = [chunks[i] for i in ending], is_captured

    @_for_inference
    def capture_graphs(
        self, sizes: Sequence[int], *, max_blocks: int, position_rows: int, make_graph: Callable[[], Graph]
    ) -> None:
        """Capture decode steps, which from then on run as graphs, if that can be; arguments as of `DecodeGraphs`."""
        graphs = DecodeGraphs(
            lambda batch: self._logits(self._decode(batch, self._embed_text(batch.input_ids), {})),
            sizes,
            max_blocks=max_blocks,
            position_rows=position_rows,
            device=self.device,
            make_graph=make_graph,
        )
        try:
            graphs.capture()
        except NotCapturable as reason:
            logger.warning("decode steps do not run as CUDA graphs: %s", reason)
            return
        self._graphs = graphs

    @_for_inference
    def profile_run(self, num_tokens: int, num_seqs: int, max_len: int, features: Sequence[MultiModalFeature]) -> None:
        """The busiest step there can be, on nobody's tokens in the null block: for the memory that it takes, and for
        kernels to be compiled.

        Args:
            num_tokens: of the step.
            num_seqs: sequences that sample in it.
            max_len: of a sequence.
            features: the largest item of each modality; as many are encoded as have rows for the step's tokens.
        """
        for feature in features:
            self.encoders.run([feature] * max(1, num_tokens // feature.placeholder.num_embeds))
        self.encoders.drop(feature.identifier for feature in features)
        lens = [min(max_len, num_tokens - start) for start in range(0, num_tokens, max_len)]
        chunks = [
            SequenceChunk("", 0, length, [0] * length, [0] * -(-length // self._block_size), samples=False)
            for length in lens
        ]
        sampled = [
            SamplingState(NewSequence("", [0], [], params, []), self._vocab_size, self.device, self._seed)
            for params in _PROFILED_PARAMS
        ]
        states = [SequenceState(NewSequence("", [0], [], _PROFILED_PARAMS[0], []), sampled[0]) for _ in chunks]
        hidden = self._forward(lay_out(chunks, states, self._block_size).to(self.device), chunks, {})
        logits = self._logits(hidden[:num_seqs])
        for sampling in sampled:
            self._sampler(logits, [sampling] * len(logits))

    @_for_inference
    def is_healthy(self) -> bool:
        """Whether a step still works at all: one token of nobody's, in the null block."""
        sequence = NewSequence("", [0], [], SamplingParams(temperature=0), [])
        state = SequenceState(sequence, SamplingState(sequence, self._vocab_size, self.device, self._seed))
        try:
            pending = InFlightStep(StepResult(), {})
            self._run([SequenceChunk("", 0, 1, [0], [0], samples=True)], [state], {}, pending)
            pending.wait()
        except Exception:
            logger.exception("the model does not run any more")
            return False
        return True

    # --- sequences --------------------------------------------------------------------------------------------------

    def _admit(self, sequence: NewSequence, result: StepResult) -> None:
        state = SequenceState(sequence, SamplingState(sequence, self._vocab_size, self.device, self._seed))
        self._states[sequence.request_id] = state
        if not sequence.features:
            return
        try:
            answer = self._rope_positions(sequence.prompt_token_ids, sequence.features)
            if answer is not None:
                state.prompt_positions, state.position_offset = answer
        except Exception as error:
            result.failed[sequence.request_id] = failure_of("get_rope_positions", error, RequestFailedError)

    def _rope_positions(
        self, token_ids: Sequence[int], features: Sequence[MultiModalFeature]
    ) -> tuple[NDArray[np.int64], int] | None:
        """Positions of a prompt, `[prompt_len]` or `[3, prompt_len]`, and the offset after it; None for 0, 1, 2, ..."""
        answer = self._hooks.get_rope_positions(model=self.model, token_ids=token_ids, mm_features=features)
        if answer is None:
            return None
        positions, offset = answer
        if positions.shape not in ((len(token_ids),), (3, len(token_ids))):
            raise ContractError(
                f"get_rope_positions must give [{len(token_ids)}] or [3, {len(token_ids)}] positions, got "
                f"{tuple(positions.shape)}"
            )
        return positions.to("cpu", torch.int64).numpy(), offset

    def position_rows(self, token_ids: Sequence[int], feature: MultiModalFeature) -> int:
        """How many positions each token of a prompt with an item has: 3 for M-RoPE, else 1."""
        answer = self._rope_positions(token_ids, [feature])
        return 3 if answer is not None and answer[0].ndim == 2 else 1

    def _features_to_encode(self, batch: ScheduledBatch) -> list[MultiModalFeature]:
        """What the engine asked for, and what it believes to be here but an interrupted step never computed."""
        asked = [self._states[request_id].sequence.features[index] for request_id, index in batch.encode]
        lost = [f for chunk in batch.chunks for f in self._touched(chunk) if f not in self.encoders]
        return list({feature.identifier: feature for feature in (*asked, *lost)}.values())

    def _touched(self, chunk: SequenceChunk) -> list[MultiModalFeature]:
        return touched(self._states[chunk.request_id].sequence.features, chunk)

    # --- embeddings -------------------------------------------------------------------------------------------------

    def _gather_embeddings(self, chunks: Sequence[SequenceChunk], result: StepResult) -> Embeddings:
        """The item embeddings each chunk touches: `{request id: [(item, all its rows)]}`."""
        gathered: dict[str, list[tuple[MultiModalFeature, Tensor]]] = {}
        for chunk in chunks:
            if chunk.request_id in result.failed:
                continue
            try:
                found = [(feature, self.encoders.output(feature)) for feature in self._touched(chunk)]
            except CorellmError as error:
                result.failed[chunk.request_id] = error.with_traceback(None)  # which would hold everybody's rows
                continue
            if found:
                gathered[chunk.request_id] = found
        return gathered

    def _embed(
        self, input_ids: Tensor, chunks: Sequence[SequenceChunk], embeddings: Embeddings
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Text embeddings with the items' written in: `[num_tokens, hidden_size]`, and what the forward pass needs."""
        if not any(chunk.request_id in embeddings for chunk in chunks):
            return self._embed_text(input_ids), {}
        mask, rows = rows_of(chunks, embeddings)
        is_multimodal = upload(mask, self.device)
        # placeholder ids may lie outside the embedding table: their rows are overwritten anyway
        text_ids = input_ids.masked_fill(is_multimodal, 0)
        merged = self._hooks.merge_multimodal_embeddings(
            inputs_embeds=self._embed_text(text_ids),
            multimodal_embeddings=torch.cat(rows),
            is_multimodal=is_multimodal,
        )
        return merged if isinstance(merged, tuple) else (merged, {})

    def _embed_text(self, input_ids: Tensor) -> Tensor:
        embeds: Tensor = self._hooks.get_input_embeddings(model=self.model, input_ids=input_ids)
        return embeds

    # --- the decoder ------------------------------------------------------------------------------------------------

    def _forward(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], embeddings: Embeddings) -> Tensor:
        """Hidden states of the flat batch, `[num_tokens, hidden_size]`."""
        inputs_embeds, extra = self._embed(batch.input_ids, chunks, embeddings)
        return self._decode(batch, inputs_embeds, extra)

    def _decode(self, batch: FlatBatch, inputs_embeds: Tensor, extra: Mapping[str, Any]) -> Tensor:
        hidden: Tensor = self._language_model(
            inputs_embeds=inputs_embeds[None],
            position_ids=batch.positions,
            use_cache=False,
            paged=PagedAttention(self._backend, self._kv_cache.layers, batch.metadata),
            **extra,
        )[0][0]
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._hooks.compute_logits(model=self.model, hidden_states=hidden)
        return logits

    def _prompt_logprobs(
        self,
        chunks: Sequence[SequenceChunk],
        states: Sequence[SequenceState],
        hidden: Tensor,
        ends: NDArray[np.int64],
        result: StepResult,
    ) -> None:
        """Log-probabilities of prompt tokens, for requests that asked and are still in their prompt."""
        for chunk, state, last in zip(chunks, states, ends, strict=True):
            num_top = state.sequence.sampling_params.prompt_logprobs
            prompt = state.sequence.prompt_token_ids
            targets = prompt[chunk.start + 1 : chunk.start + chunk.num_tokens + 1]
            if num_top is None or not targets or state.sequence.output_token_ids:
                continue
            first = int(last) - chunk.num_tokens + 1
            rows = hidden[first : first + len(targets)]
            result.prompt_logprobs[chunk.request_id] = prompt_logprobs(
                self._logits, rows, upload(np.array(targets, dtype=np.int64), self.device), num_top
            )


def _is_plain_decode(chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], embeddings: Embeddings) -> bool:
    """Whether a step of single tokens is all text, and each of them is followed by one to be sampled."""
    if embeddings or not all(chunk.samples for chunk in chunks):
        return False
    return all(state.sequence.sampling_params.prompt_logprobs is None for state in states)
