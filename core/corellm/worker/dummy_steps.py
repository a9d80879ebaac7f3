"""Steps on dummy tokens in the null block, which no request asked for: the profile run, capture, and a check of health.

They run the same forward pass as requests. The functions' first argument is the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams
from corellm.worker.batch import NewSequence, ScheduledBatch, SequenceChunk
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.devices import for_inference
from corellm.worker.graphs import Graph, NotCapturable
from corellm.worker.input_batch import lay_out
from corellm.worker.model_runner import ModelRunner
from corellm.worker.sequence_state import rope_positions
from corellm.worker.step_in_flight import StepInFlight

logger = logging.getLogger(__name__)

_PROFILED_PARAMS = [
    SamplingParams(**choice, **edits)  # type: ignore[arg-type]
    for choice in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9})
    for edits in ({}, {"repetition_penalty": 1.1, "logit_bias": {0: 1.0}, "allowed_token_ids": [0], "logprobs": 1})
]
"""Every way to choose tokens: the profile run compiles their kernels before the first request."""


@for_inference
def profile_run(
    runner: ModelRunner, num_tokens: int, num_seqs: int, max_len: int, features: Sequence[MultiModalFeature]
) -> None:
    """Run the largest possible step, to measure its memory and compile kernels.

    Args:
        runner: the worker.
        num_tokens: tokens of the step.
        num_seqs: sequences that sample in it.
        max_len: longest sequence.
        features: the largest item of each modality; as many are encoded as fit into the step's tokens.
    """
    for feature in features:
        runner.encoders.run([feature] * max(1, num_tokens // feature.placeholder.num_embeds))
    runner.encoders.drop(feature.identifier for feature in features)
    lens = [min(max_len, num_tokens - start) for start in range(0, num_tokens, max_len)]
    chunks = [
        SequenceChunk("", 0, length, [0] * length, [0] * -(-length // runner.block_size), samples=False)
        for length in lens
    ]
    sampled = [runner.new_state(NewSequence("", [0], [], params, [])) for params in _PROFILED_PARAMS]
    states = [runner.new_state(sampled[0].sequence) for _ in chunks]
    hidden = runner.forward(lay_out(chunks, states, runner.block_size).to(runner.device), chunks, states)
    if not runner.samples:
        return
    logits = runner.logits(hidden[:num_seqs])
    for state in sampled:
        runner.sampler(logits, [state.sampling] * len(logits))


@for_inference
def capture_graphs(
    runner: ModelRunner,
    sizes: Sequence[int],
    *,
    max_blocks: int,
    position_rows: int,
    make_graph: Callable[[], Graph],
) -> None:
    """Capture decode steps as graphs, if that is possible; arguments as of `DecodeGraphs`."""
    graphs = DecodeGraphs(
        runner.text_logits,
        sizes,
        max_blocks=max_blocks,
        position_rows=position_rows,
        device=runner.device,
        make_graph=make_graph,
    )
    try:
        graphs.capture()
    except NotCapturable as reason:
        logger.warning("decode steps do not run as CUDA graphs: %s", reason)
        return
    runner.graphs = graphs


def count_position_rows(runner: ModelRunner, token_ids: Sequence[int], feature: MultiModalFeature) -> int:
    """Number of positions of each token of a prompt with an item: 3 for M-RoPE, else 1."""
    found = rope_positions(runner.hooks, runner.model, token_ids, [feature])
    return 3 if found is not None and found[0].ndim == 2 else 1


@for_inference
def is_healthy(runner: ModelRunner) -> bool:
    """Whether a step still runs."""
    state = runner.new_state(NewSequence("", [0], [], SamplingParams(temperature=0), []))
    try:
        step = StepInFlight(ScheduledBatch(), {})
        runner.run([SequenceChunk("", 0, 1, [0], [0], samples=True)], [state], step)
        step.wait()
    except Exception:
        logger.exception("the model does not run any more")
        return False
    return True
