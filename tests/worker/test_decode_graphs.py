"""Decode steps run as captured graphs give what they give one by one: padding, positions and block tables included."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.activations import SiLUActivation

from corellm import LLM, SamplingParams
from corellm.attention.backend import AttentionMetadata
from corellm.attention.graph import NotCapturable
from corellm.loading.dummy_steps import capture_graphs
from corellm.worker.decode_graphs import DecodeGraphs, StaticInputs, graph_sizes, plan_sizes_for_cpu, sizes_at_load
from corellm.worker.input_batch import FlatBatch
from corellm_testing.together import generate_together
from tests.fixtures import random_image
from tests.sampling.automaton import automata, automaton
from tests.worker.replayed_graph import ReplayedGraph
from tests.worker.tensor_attention import TensorAttention

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A LLaVA, and a Qwen2-VL with its three kinds of positions."""
    from corellm_llava.tiny import make_tiny_checkpoint as make_llava
    from corellm_qwen_vl.tiny import make_tiny_checkpoint as make_qwen

    return {"llava": make_llava(tmp_path_factory.mktemp("l")), "qwen2-vl": make_qwen(tmp_path_factory.mktemp("q"))}


PROMPTS = {
    "llava": "USER: <image>\nWhat is this? ASSISTANT:",
    "qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>What is this?",
}


@pytest.fixture(scope="module", autouse=True)
def _constraints() -> Iterator[None]:
    with automata():
        yield


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLM]]:
    """An engine whose decode steps are captured, and are counted in its `replays`."""
    made: list[LLM] = []

    def make(path: Path, position_rows: int) -> LLM:
        # torch's operations only: what is replayed here are those
        llm = LLM(
            str(path), dtype="float32", max_model_len=256, num_kv_blocks=128, max_num_seqs=6, fuse_layers=False,
            attention_backend="reference",
        )  # fmt: skip
        made.append(llm)
        runner = llm.engine.runner
        runner.backend = TensorAttention()
        capture_graphs(runner, [1, 2, 4, 6], max_blocks=16, position_rows=position_rows, make_graph=ReplayedGraph)
        return llm

    yield make
    for llm in made:
        llm.close()


@pytest.mark.parametrize(("family", "position_rows"), [("llava", 1), ("qwen2-vl", 3)])
def test_greedy_tokens_are_those_of_eager_steps(
    family: str, position_rows: int, checkpoints: dict[str, Path], captured: Callable[..., LLM], monkeypatch: Any
) -> None:
    """Six requests of different lengths, with images and without: batches of every size, padded or not."""
    prompts: list[Any] = [
        {"prompt": PROMPTS[family], "multi_modal_data": {"image": random_image(40, 30, i)}} for i in range(3)
    ]
    prompts += ["Hello", "What is the capital of France, and why? " * 4, "One more"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 20, 9, 14, 6, 17)]
    with LLM(str(checkpoints[family]), dtype="float32", max_model_len=256, num_kv_blocks=128) as eager:
        wanted = [o.outputs[0].token_ids for o in generate_together(eager, prompts, params)]
    llm = captured(checkpoints[family], position_rows)
    sizes: list[int] = []
    fill = StaticInputs.fill
    monkeypatch.setattr(
        StaticInputs, "fill", lambda self, batch, size, *rest: (sizes.append(size), fill(self, batch, size, *rest))[1]
    )
    assert [o.outputs[0].token_ids for o in generate_together(llm, prompts, params)] == wanted
    assert set(sizes) == {1, 2, 4, 6}


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 1, "max_tokens": 25},
    {"temperature": 1.2, "top_p": 0.7, "top_k": 30, "seed": 2, "max_tokens": 18},
    {"temperature": 0, "max_tokens": 30, "stop_token_ids": list(range(0, 400, 9)), "min_tokens": 3},
    {"temperature": 0, "max_tokens": 30, "ignore_eos": False},
    {"temperature": 0.9, "seed": 3, "max_tokens": 12, "n": 2},
    {"temperature": 0, "max_tokens": 10},
    {"temperature": 0, "max_tokens": 7, "logit_bias": {5: 3.0}},
    {"temperature": 0, "max_tokens": 9, "logprobs": 2},
    {"temperature": 0.7, "seed": 5, "max_tokens": 13, "logprobs": 0},
]
LOOKING: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 9, "repetition_penalty": 1.3, "bad_words": ["the", "a"]},
    {"temperature": 0.9, "seed": 4, "max_tokens": 6, "frequency_penalty": 0.5, "logprobs": 0},
    {"temperature": 0.9, "seed": 6, "max_tokens": 25, "constraint": automaton()},
]
"""Requests whose next token has to know the last one."""


def launched_ahead(runner: Any, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the tokens of each step launched ahead, from now on, wait for those of the step before."""
    ahead: list[bool] = []
    launch = runner.launch_ahead

    def noted(*args: Any) -> Any:
        step = launch(*args)
        ahead.append(step.tokens is None)
        return step

    monkeypatch.setattr(runner, "launch_ahead", noted)
    return ahead


def comparable(positions: Any) -> Any:
    """Log-probabilities, equal where batches of other sizes give about the same."""
    return positions and [
        {token: (pytest.approx(entry.logprob, abs=2e-3), entry.rank) for token, entry in position.items()}
        for position in positions
    ]


@pytest.mark.parametrize("mixed", [False, True])
def test_steps_run_ahead_with_the_same_results(
    mixed: bool, checkpoints: dict[str, Path], captured: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than places, drawn and greedy: overlapping steps do not change when and with what they end.

    Beside requests that look back the tokens of a step wait for those before, but the step does not.
    """
    asked = SAMPLING + (LOOKING if mixed else [])
    params = [SamplingParams(**{"ignore_eos": True, **options}) for options in asked]
    prompts = [f"Tell me {'more ' * i}about it" for i in range(len(asked))]

    def told(llm: LLM) -> list[Any]:
        return [
            [(c.token_ids, c.text, c.finish_reason, comparable(c.logprobs)) for c in output.outputs]
            for output in llm.generate(prompts, params)
        ]

    with LLM(str(checkpoints["llava"]), dtype="float32", max_model_len=256, num_kv_blocks=128, max_num_seqs=6) as eager:
        wanted = told(eager)
    llm = captured(checkpoints["llava"], 1)
    runner = llm.engine.runner
    ahead = launched_ahead(runner, monkeypatch)
    assert told(llm) == wanted
    assert len(ahead) > 10
    assert (sum(ahead) > 10) == mixed  # without, the first few alone wait: for `min_tokens`
    assert not all(ahead)
    assert llm.engine.scheduler.blocks.num_free_blocks == llm.engine.scheduler.blocks.capacity
    assert not runner._states


@pytest.mark.parametrize("stage", ["launch_ahead", "sample_ahead"])
def test_a_step_that_cannot_run_ahead_runs_after_the_one_before(
    stage: str, checkpoints: dict[str, Path], captured: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request fails because of it."""
    llm, params = captured(checkpoints["llava"], 1), SamplingParams(**{"ignore_eos": True, **LOOKING[-1]})
    wanted = llm.generate("Hello there", params)[0].outputs[0].token_ids
    failures: list[int] = []

    def fail(*args: Any) -> Any:
        failures.append(1)
        raise RuntimeError("no")

    monkeypatch.setattr(llm.engine.runner, stage, fail)
    assert llm.generate("Hello there", params)[0].outputs[0].token_ids == wanted
    assert len(failures) > 5


def test_an_interrupted_step_is_repeated(checkpoints: dict[str, Path], captured: Callable[..., LLM]) -> None:
    """Between a step and the one after it, which is on its way already: neither has happened."""
    llm = captured(checkpoints["llava"], 1)
    engine, params = llm.engine, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    wanted = llm.generate("Hello there", params)[0].outputs[0].token_ids
    engine.add_request("again", "Hello there", params)
    for _ in range(4):
        engine.step()
    assert engine._ahead is not None
    count, interrupted = engine._count_failures, []

    def interrupt(*args: Any) -> Any:
        engine._count_failures = count
        interrupted.append(1)
        raise KeyboardInterrupt

    engine._count_failures = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert interrupted
    assert outputs[0].outputs[0].token_ids == wanted


def test_steps_that_differ_run_one_by_one(checkpoints: dict[str, Path], captured: Callable[..., LLM]) -> None:
    """An image with three position rows does not run in graphs captured with one."""
    llm = captured(checkpoints["qwen2-vl"], 1)
    prompt = {"prompt": PROMPTS["qwen2-vl"], "multi_modal_data": {"image": random_image(40, 30, 0)}}
    with LLM(str(checkpoints["qwen2-vl"]), dtype="float32", max_model_len=256, num_kv_blocks=128) as eager:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        assert (
            llm.generate(prompt, params)[0].outputs[0].token_ids
            == eager.generate(prompt, params)[0].outputs[0].token_ids
        )


def test_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(16) == [1, 2, 4, 8, 16]
    assert graph_sizes(33) == [1, 2, 4, 8, 16, 24, 32, 33]
    assert sizes_at_load(plan_sizes_for_cpu(64), 0) == [1]


@pytest.mark.parametrize("num_drafts", [1, 5, 16, 64])
def test_sizes_at_load_hold_a_sequence_with_its_drafts(num_drafts: int) -> None:
    """And few others, so that any step of up to 64 rows is padded to less than twice its rows."""
    sizes = plan_sizes_for_cpu(256)
    at_load = sizes_at_load(sizes, num_drafts)
    assert min(size for size in at_load if size > num_drafts) == min(size for size in sizes if size > num_drafts)
    assert all(min(size for size in at_load if size >= rows) < 2 * rows for rows in range(1, 65))
    assert len(at_load) <= 8


def batch_of(num_seqs: int) -> FlatBatch:
    one = torch.arange(1, num_seqs + 1)
    metadata = AttentionMetadata(
        num_decodes=num_seqs,
        query_lens=[1] * num_seqs,
        seq_lens=(one + 60).tolist(),
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens_tensor=one + 60,
        block_tables=(one[:, None] + 80).tile(2),
        slot_mapping=one + 40,
    )
    return FlatBatch(one, one[None] + 20, metadata)


def test_padding_is_of_no_sequence() -> None:
    """What a larger batch left behind is overwritten: it would write into blocks that now belong to other sequences."""
    inputs = StaticInputs(4, 3, 3, CPU)
    inputs.fill(batch_of(4), 4)
    inputs.fill(batch_of(2), 4)
    batch = inputs.batch(4)
    assert batch.input_ids.tolist() == [1, 2, 0, 0]
    assert batch.positions.tolist() == [[[21, 22, 0, 0]]] * 3
    assert batch.metadata.slot_mapping.tolist() == [41, 42, 0, 0]
    assert batch.metadata.seq_lens_tensor.tolist() == [61, 62, 0, 0]
    assert batch.metadata.block_tables[:2, :2].tolist() == [[81, 81], [82, 82]]
    assert batch.metadata.query_start_loc.tolist() == [0, 1, 2, 3, 4]


def test_layers_that_are_told_something_else_have_inputs_of_their_own() -> None:
    """Layers told the same share them, as backends plan by the object; the others do not see them."""
    given = batch_of(2)
    other = replace(given.metadata, slot_mapping=given.metadata.slot_mapping + 9, block_tables=torch.full((2, 2), 7))
    given = replace(given, of_layers={1: other, 3: other})
    inputs = StaticInputs(4, 3, 1, CPU, given.of_layers)
    inputs.fill(given, 2)
    batch = inputs.batch(2)
    assert batch.of_layers.keys() == {1, 3}
    assert batch.of_layers[1] is batch.of_layers[3]
    for metadata, wanted in ((batch.metadata, given.metadata), (batch.of_layers[1], other)):
        assert metadata.slot_mapping.tolist() == wanted.slot_mapping.tolist()
        assert metadata.block_tables[:, :2].tolist() == wanted.block_tables.tolist()
        assert metadata.seq_lens_tensor.tolist() == [61, 62]


def counted_step(fails: int = 0) -> tuple[list[int], Callable[[Any], Tensor]]:
    """A step whose logits are its tokens, and the sizes of its runs; it cannot be captured in the size `fails`."""
    runs: list[int] = []

    def step(batch: Any) -> Tensor:
        runs.append(len(batch.input_ids))
        if len(batch.input_ids) == fails:
            raise NotCapturable("it fails")
        return batch.input_ids[:, None] * 1.0

    return runs, step


def test_the_largest_size_is_captured_first_and_the_smallest_that_fits_is_run() -> None:
    order, step = counted_step()
    graphs = DecodeGraphs(step, [1, 2, 4], max_blocks=3, position_rows=1, device=CPU, make_graph=ReplayedGraph)
    graphs.capture()
    assert order == [4, 4, 2, 1]
    assert graphs.run(batch_of(3)).tolist() == [[1.0], [2.0], [3.0]]
    assert graphs.run(batch_of(1)).tolist() == [[1.0]]
    assert order == [4, 4, 2, 1]
    assert not graphs.fits(batch_of(5))


def test_a_size_that_is_captured_when_it_first_runs_runs_once() -> None:
    """On the inputs of its first batch, whose result counts; then it is replayed."""
    runs: list[int] = []
    total = torch.zeros(1)

    def step(batch: Any) -> Tensor:
        runs.append(len(batch.input_ids))
        return total.add_(batch.input_ids.sum()).expand(len(batch.input_ids), 1)

    graphs = DecodeGraphs(step, [1, 2], max_blocks=3, position_rows=1, device=CPU, make_graph=ReplayedGraph)
    graphs.capture([1])
    assert (runs, total.item()) == ([1, 1], 0)  # of padding, token 0
    assert graphs.run(batch_of(2)).tolist() == [[3.0], [3.0]]
    assert graphs.run(batch_of(2)).tolist() == [[6.0], [6.0]]
    assert runs == [1, 1, 2]


def test_a_size_is_captured_once_padding_has_cost_as_much() -> None:
    """Two of four rows waste half a step: the fourth such step is captured; a full one wastes nothing."""
    runs, step = counted_step()
    graphs = DecodeGraphs(step, [1, 2, 4], max_blocks=3, position_rows=1, device=CPU, make_graph=ReplayedGraph)
    graphs.capture([4])
    runs.clear()
    for _ in range(3):
        assert graphs.run(batch_of(2)).tolist() == [[1.0], [2.0]]
        assert graphs.run(batch_of(4)).tolist() == [[1.0], [2.0], [3.0], [4.0]]
    assert not runs
    for _ in range(2):
        assert graphs.run(batch_of(2)).tolist() == [[1.0], [2.0]]
    assert runs == [2]


def test_a_size_that_cannot_be_captured_is_padded() -> None:
    """Its first capture fails with its step; later ones are not tried."""
    runs, step = counted_step(fails=2)
    graphs = DecodeGraphs(step, [2, 4], max_blocks=3, position_rows=1, device=CPU, make_graph=ReplayedGraph)
    graphs.capture([4])
    runs.clear()
    for _ in range(3):
        graphs.run(batch_of(2))
    with pytest.raises(NotCapturable, match="it fails"):
        graphs.run(batch_of(2))
    for _ in range(9):
        assert graphs.run(batch_of(2)).tolist() == [[1.0], [2.0]]
    assert runs == [2]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: torch.full((1,), float(x.sum())),
        lambda x: x if x.any() else -x,
        lambda x: x[x > 0],
        lambda x: torch.where(x > 0)[0],
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.unique(),
    ],
)
def test_a_recorded_step_may_not_wait_for_the_device(read: Callable[[Tensor], Tensor]) -> None:
    with torch.inference_mode(), pytest.raises(NotCapturable):
        ReplayedGraph().capture(lambda: read(torch.ones(1)))


def test_a_model_that_waits_for_the_device_decodes_without_graphs(
    tiny_llava: Path, captured: Callable[..., LLM], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activation that reads values of its input on the host; the log says why."""
    plain = SiLUActivation.forward
    monkeypatch.setattr(SiLUActivation, "forward", lambda self, x: plain(self, x) if x.isfinite().all() else x)
    llm = captured(tiny_llava, 1)
    assert "run as graphs" in caplog.text
    assert len(llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3


def test_positions_that_stretch_are_captured(
    tmp_path: Path, captured: Callable[..., LLM], caplog: pytest.LogCaptureFixture
) -> None:
    """Their frequencies are fixed at load, so that no step looks for the longest position."""
    from corellm_llava.tiny import make_tiny_checkpoint

    path = make_tiny_checkpoint(tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (path / "config.json").write_text(json.dumps(config))
    captured(path, 1)
    assert "run as graphs" not in caplog.text
