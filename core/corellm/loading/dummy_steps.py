"""Steps on dummy tokens in the null block, which no request asked for: the profile run, capture, and a check of health.

They run the same forward pass as requests. The functions' first argument is the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from corellm.attention.graph import Graph, NotCapturable
from corellm.errors import ContractError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence, ScheduledBatch, SequenceChunk
from corellm.system.devices import for_inference
from corellm.system.transfers import upload_all
from corellm.worker.decode_graphs import DecodeGraphs
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
_SAME = 2e-2
"""The difference of hidden states, relative to them, that rounding may make in bfloat16."""


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
    for part in runner.parts:
        part.profile()
    lens = [min(max_len, num_tokens - start) for start in range(0, num_tokens, max_len)]
    chunks = [
        SequenceChunk("", 0, length, [0] * length, [0] * -(-length // runner.block_size), samples=False)
        for length in lens
    ]
    sampled = [runner.new_state(NewSequence("", [0], [], params, [])) for params in _PROFILED_PARAMS]
    states = [runner.new_state(sampled[0].sequence) for _ in chunks]
    hidden = runner.forward(upload_all(runner.lay_out(chunks, states), runner.device), chunks, states)
    if not runner.samples:
        return
    logits = runner.logits(hidden[: num_seqs * (1 + max((part.most_drafts for part in runner.parts), default=0))])
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
    at_once: Sequence[int] | None = None,
) -> None:
    """Capture decode steps as graphs, if that is possible.

    Args:
        runner: the worker.
        sizes, max_blocks, position_rows, make_graph: as of `DecodeGraphs`.
        at_once: the sizes to capture now; None for all. Others are captured when they are needed.
    """
    for part in runner.parts:
        part.reserve_captured(sizes[-1])
    chunk = SequenceChunk("", 0, 1, [0], [0], samples=True)
    like = runner.lay_out([chunk], [runner.new_state(NewSequence("", [0], [], SamplingParams(), []))])
    graphs = DecodeGraphs(
        runner.text_logits,
        sizes,
        max_blocks=max_blocks,
        position_rows=position_rows,
        device=runner.device,
        make_graph=make_graph,
        of_layers=like.of_layers,
    )
    try:
        graphs.capture(at_once)
    except NotCapturable as reason:
        logger.warning("decode steps do not run as graphs: %s", reason)
        return
    runner.graphs = graphs


def count_position_rows(runner: ModelRunner, token_ids: Sequence[int], feature: MultiModalFeature) -> int:
    """Number of positions of each token of a prompt with an item: one per axis for M-RoPE, else 1.

    Raises:
        NotCapturable: the adapter fails to tell; so will requests with items.
    """
    try:
        found = rope_positions(runner.hooks, runner.model, token_ids, [feature])
    except Exception as error:
        raise NotCapturable(f"get_rope_positions: {type(error).__name__}: {error}") from error
    return len(found[0]) if found is not None and found[0].ndim == 2 else 1


@for_inference
def check_trimming(runner: ModelRunner) -> None:
    """Set `runner.trims`: whether sampled tokens have the same hidden states when the decoder skips the others."""
    num_tokens, outputs = 5, torch.tensor([1, 4], device=runner.device)
    if runner.block_size < num_tokens:  # they must fit into the null block, which no request has
        return
    state = runner.new_state(NewSequence("", [0] * num_tokens, [], SamplingParams(), []))
    chunk = SequenceChunk("", 0, num_tokens, [0, 1, 0, 1, 1], [0], samples=True)
    batch = upload_all(runner.lay_out([chunk], [state]), runner.device)
    whole = runner.forward(batch, [chunk], [state])[outputs]
    runner.trims = True
    try:
        trimmed = runner.forward(replace(batch, outputs=outputs), [chunk], [state])
        runner.trims = trimmed.shape == whole.shape and bool(
            ((trimmed - whole).norm(dim=-1) <= _SAME * whole.norm(dim=-1)).all()
        )
        reason = "its hidden states differ"
        if trimmed.shape != whole.shape:
            reason = f"its hidden states are {list(trimmed.shape)} instead of {list(whole.shape)}"
    except Exception as error:  # a layer behind the last attention wants all tokens
        runner.trims, reason = False, f"it fails with {type(error).__name__}: {error}"
    if not runner.trims:
        logger.info(
            "prompts take longer than with most models: after its last attention the decoder computes all tokens, not "
            "only the one that is sampled from; without the others, %s",
            reason,
        )


@for_inference
def check_additions(runner: ModelRunner, layers: Mapping[str, nn.Module]) -> None:
    """Check that a step runs linear layers that have additions once each, on the rows of all its tokens.

    Layers of experts, for the states of an encoder, or behind a sum over tokens do not: an addition would go to other
    sequences' rows, or to none.

    Raises:
        ContractError: one does not; names it.
    """
    # different tokens: experts divide them
    chunks = [SequenceChunk("", 0, len(ids), ids, [0] * len(ids), samples=True) for ids in ([0], [1, 2, 3])]
    states = [runner.new_state(NewSequence("", list(chunk.token_ids), [], SamplingParams(), [])) for chunk in chunks]
    missing = set(layers)

    def note(name: str, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        num_rows = args[0].shape[:-1].numel()
        if num_rows != 4 or name not in missing:
            raise refusal(name, f"{num_rows} rows" if name in missing else "two inputs")
        missing.remove(name)

    def refusal(name: str, rows: str) -> ContractError:
        return ContractError(
            f"an extension adds to the outputs of {name}, which must run once in a step, on a row for each of its "
            f"tokens; a step of 4 tokens ran it on {rows}: leave this layer out"
        )

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_pre_hook(partial(note, name)).remove)
        runner.forward(upload_all(runner.lay_out(chunks, states), runner.device), chunks, states)
    if missing:
        raise refusal(min(missing), "none")


@for_inference
def is_healthy(runner: ModelRunner) -> bool:
    """Whether a step still runs."""
    state = runner.new_state(NewSequence("", [0, 0], [], SamplingParams(temperature=0), []))
    try:
        step = StepInFlight(ScheduledBatch(), {})
        # two tokens: of the model itself, not of a graph
        runner.run([SequenceChunk("", 0, 2, [0, 0], [0], samples=True)], [state], step)
        step.wait()
    except Exception:
        logger.exception("the model does not run any more")
        return False
    return True
