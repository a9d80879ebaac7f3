"""Runs one scheduled batch: encoders, embeddings, the decoder on the paged cache, logits, samples.

Knows tensors and the adapter's hooks; knows nothing of queues, blocks' owners or text. `launch` reads top to bottom
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
from corellm.plugin.hook_callers import HookCallers
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
from corellm.worker.item_embeddings import Embeddings, select_embeddings, touched
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
"""Every way to choose tokens: the profile run compiles their kernels before the first request."""


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _for_inference(
    method: Callable[Concatenate[ModelRunner, _Arguments], _Result],
) -> Callable[Concatenate[ModelRunner, _Arguments], _Result]:
    """Run a method of the runner on its device, without gradients."""

    @wraps(method)
    def run(runner: ModelRunner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with on_device(runner.device), torch.inference_mode():
            return method(runner, *args, **kwargs)

    return run


class ModelRunner:
    """Owns the model, the KV cache, encoder outputs and every running sequence's state.

    Args:
        hooks: the model's hook callers.
        model: the loaded model.
        language_model: the text decoder inside it.
        kv_cache: its layers' caches.
        backend: the attention backend.
        block_size: slots per block.
        vocab_size: width of the logits.
        embedding_width: width of the embeddings that `get_multimodal_embeddings` returns; None for that of the first.
        dtype, device: of the model.
        seed: of requests that bring none.
        sample: an extension's function that chooses tokens, or None.
    """

    def __init__(
        self,
        hooks: HookCallers,
        model: nn.Module,
        language_model: nn.Module,
        kv_cache: KVCache,
        backend: AttentionBackend,
        *,
        block_size: int,
        vocab_size: int,
        embedding_width: int | None,
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
        """Run one step and wait for its result; requests that failed are in its `failed`."""
        return self.launch(batch).wait()

    def forget(self) -> None:
        """Drop every sequence and encoder output, after a step was interrupted."""
        self._states.clear()
        self.encoders.drop_all()

    @_for_inference
    def launch(self, batch: ScheduledBatch) -> InFlightStep:
        """Run one step as `execute` does, without waiting for its tokens."""
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
        step = InFlightStep(result, self._states)
        if chunks:
            self._compute(chunks, embeddings, step)
        return step

    @_for_inference
    def launch_ahead(self, batch: ScheduledBatch, before: InFlightStep) -> InFlightStep:
        """Run a step of single tokens that `before`, a captured step and the last one launched, is still sampling."""
        assert self._graphs is not None
        assert before.tokens is not None
        states = [self._states[chunk.request_id] for chunk in batch.chunks]
        token_ids = before.tokens.token_ids
        if len(batch.chunks) < len(before.chunks):
            rows = {chunk.request_id: row for row, chunk in enumerate(before.chunks)}
            kept = np.array([rows[chunk.request_id] for chunk in batch.chunks])
            token_ids = token_ids[upload(kept, self.device)]
        arrays = lay_out(batch.chunks, states, self._block_size)
        logits = self._graphs.run(arrays, token_ids.clamp(min=0))  # a failed row has -1; its next token is dropped
        step = InFlightStep(StepResult(), self._states)
        step.chunks, step.is_captured = batch.chunks, True
        step.tokens = self._sampler.start(logits, [state.sampling for state in states], ahead=1)
        return step

    def _compute(self, chunks: Sequence[SequenceChunk], embeddings: Embeddings, step: InFlightStep) -> None:
        """Run the forward pass and sample. If that fails, each chunk runs alone, so that only the failing ones fail.

        Running a chunk again writes the same keys and values to the same slots and draws the same random numbers.
        """
        try:
            self._run(chunks, [self._states[chunk.request_id] for chunk in chunks], embeddings, step)
            return
        except Exception as error:
            if len(chunks) == 1:
                step.result.failed[chunks[0].request_id] = failure_of("the forward pass", error, RequestFailedError)
                return
            logger.warning("a step of %d requests failed; running them one by one", len(chunks), exc_info=error)
        for chunk in chunks:  # outside `except`: the error holds the failed step's tensors
            self._compute([chunk], embeddings, step)
            step.wait()

    def _run(
        self,
        chunks: Sequence[SequenceChunk],
        states: Sequence[SequenceState],
        embeddings: Embeddings,
        step: InFlightStep,
    ) -> None:
        """Run one forward pass, and sample a token for every chunk that ends its sequence."""
        arrays = lay_out(chunks, states, self._block_size)
        if self._graphs is not None and self._graphs.fits(arrays) and _is_plain_decode(chunks, states, embeddings):
            logits, ending, is_captured = self._graphs.run(arrays), list(range(len(chunks))), True
        else:
            hidden = self._forward(arrays.to(self.device), chunks, embeddings)
            ends = np.cumsum(arrays.query_lens) - 1
            self._prompt_logprobs(chunks, states, hidden, ends, step.result)
            ending = [i for i, chunk in enumerate(chunks) if chunk.samples]
            if not ending:
                return
            logits, is_captured = self._logits(hidden[upload(ends[ending], self.device)]), False
        step.tokens = self._sampler.start(logits, [states[i].sampling for i in ending])
        step.chunks, step.is_captured = [chunks[i] for i in ending], is_captured

    @_for_inference
    def capture_graphs(
        self, sizes: Sequence[int], *, max_blocks: int, position_rows: int, make_graph: Callable[[], Graph]
    ) -> None:
        """Capture decode steps as graphs, if that is possible; arguments as of `DecodeGraphs`."""
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
        """Run the largest possible step on dummy tokens in the null block, to measure its memory and compile kernels.

        Args:
            num_tokens: tokens of the step.
            num_seqs: sequences that sample in it.
            max_len: longest sequence.
            features: the largest item of each modality; as many are encoded as fit into the step's tokens.
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
        """Whether a step still runs: tried with a dummy token in the null block."""
        sequence = NewSequence("", [0], [], SamplingParams(temperature=0), [])
        state = SequenceState(sequence, SamplingState(sequence, self._vocab_size, self.device, self._seed))
        try:
            step = InFlightStep(StepResult(), {})
            self._run([SequenceChunk("", 0, 1, [0], [0], samples=True)], [state], {}, step)
            step.wait()
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
            positions = self._rope_positions(sequence.prompt_token_ids, sequence.features)
            if positions is not None:
                state.prompt_positions, state.position_offset = positions
        except Exception as error:
            result.failed[sequence.request_id] = failure_of("get_rope_positions", error, RequestFailedError)

    def _rope_positions(
        self, token_ids: Sequence[int], features: Sequence[MultiModalFeature]
    ) -> tuple[NDArray[np.int64], int] | None:
        """Return prompt positions, `[prompt_len]` or `[3, prompt_len]`, and the offset after it; None for 0, 1, ..."""
        result = self._hooks.get_rope_positions(model=self.model, token_ids=token_ids, mm_features=features)
        if result is None:
            return None
        positions, offset = result
        if positions.shape not in ((len(token_ids),), (3, len(token_ids))):
            raise ContractError(
                f"get_rope_positions must return [{len(token_ids)}] or [3, {len(token_ids)}] positions, got "
                f"{tuple(positions.shape)}"
            )
        return positions.to("cpu", torch.int64).numpy(), offset

    def position_rows(self, token_ids: Sequence[int], feature: MultiModalFeature) -> int:
        """Number of positions of each token of a prompt with an item: 3 for M-RoPE, else 1."""
        found = self._rope_positions(token_ids, [feature])
        return 3 if found is not None and found[0].ndim == 2 else 1

    def _features_to_encode(self, batch: ScheduledBatch) -> list[MultiModalFeature]:
        """Return the items the engine scheduled, and those it believes cached but an interrupted step left out."""
        scheduled = [self._states[request_id].sequence.features[index] for request_id, index in batch.encode]
        lost = [f for chunk in batch.chunks for f in self._touched(chunk) if f not in self.encoders]
        return list({feature.identifier: feature for feature in (*scheduled, *lost)}.values())

    def _touched(self, chunk: SequenceChunk) -> list[MultiModalFeature]:
        return touched(self._states[chunk.request_id].sequence.features, chunk)

    # --- embeddings -------------------------------------------------------------------------------------------------

    def _gather_embeddings(self, chunks: Sequence[SequenceChunk], result: StepResult) -> Embeddings:
        """Return the item embeddings each chunk needs: `{request id: [(item, all its embeddings)]}`."""
        gathered: dict[str, list[tuple[MultiModalFeature, Tensor]]] = {}
        for chunk in chunks:
            if chunk.request_id in result.failed:
                continue
            try:
                found = [(feature, self.encoders.output(feature)) for feature in self._touched(chunk)]
            except CorellmError as error:
                result.failed[chunk.request_id] = error.with_traceback(None)  # its frames hold the embeddings
                continue
            if found:
                gathered[chunk.request_id] = found
        return gathered

    def _embed(
        self, input_ids: Tensor, chunks: Sequence[SequenceChunk], embeddings: Embeddings
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return the tokens' embeddings `[num_tokens, hidden_size]`, items merged in, and extra decoder arguments."""
        if not any(chunk.request_id in embeddings for chunk in chunks):
            return self._embed_text(input_ids), {}
        mask, selected = select_embeddings(chunks, embeddings)
        is_multimodal = upload(mask, self.device)
        # placeholder ids may lie outside the embedding table; their embeddings are overwritten
        text_ids = input_ids.masked_fill(is_multimodal, 0)
        merged = self._hooks.merge_multimodal_embeddings(
            inputs_embeds=self._embed_text(text_ids),
            multimodal_embeddings=torch.cat(selected),
            is_multimodal=is_multimodal,
        )
        return merged if isinstance(merged, tuple) else (merged, {})

    def _embed_text(self, input_ids: Tensor) -> Tensor:
        return self._hooks.get_input_embeddings(model=self.model, input_ids=input_ids)

    # --- the decoder ------------------------------------------------------------------------------------------------

    def _forward(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], embeddings: Embeddings) -> Tensor:
        """Return the hidden states of the flat batch, `[num_tokens, hidden_size]`."""
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
        return self._hooks.compute_logits(model=self.model, hidden_states=hidden)

    def _prompt_logprobs(
        self,
        chunks: Sequence[SequenceChunk],
        states: Sequence[SequenceState],
        hidden: Tensor,
        ends: NDArray[np.int64],
        result: StepResult,
    ) -> None:
        """Add log-probabilities of prompt tokens to the result, for requests that want them and are in their prompt."""
        for chunk, state, last in zip(chunks, states, ends, strict=True):
            num_top = state.sequence.sampling_params.prompt_logprobs
            prompt = state.sequence.prompt_token_ids
            targets = prompt[chunk.start + 1 : chunk.start + chunk.num_tokens + 1]
            if num_top is None or not targets or state.sequence.output_token_ids:
                continue
            first = int(last) - chunk.num_tokens + 1
            before = hidden[first : first + len(targets)]
            result.prompt_logprobs[chunk.request_id] = prompt_logprobs(
                self._logits, before, upload(np.array(targets, dtype=np.int64), self.device), num_top
            )


def _is_plain_decode(chunks: Sequence[SequenceChunk], states: Sequence[SequenceState], embeddings: Embeddings) -> bool:
    """Whether a step of single tokens has text only, samples after each, and returns no prompt log-probabilities."""
    if embeddings or not all(chunk.samples for chunk in chunks):
        return False
    return all(state.sequence.sampling_params.prompt_logprobs is None for state in states)
