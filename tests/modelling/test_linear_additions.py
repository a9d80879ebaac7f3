"""Products of low rank that a test's extension adds give the tokens of transformers with merged weights."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from corellm import LLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import (
    BrokenPluginError,
    ContractError,
    CorellmError,
    InvalidParameterError,
    PromptError,
    RequestFailedError,
)
from corellm.loading.dummy_steps import capture_graphs
from corellm.loading.packed_linear import PackedLinear
from corellm.modelling.linear_additions import AddedLinear, LinearAdditions
from corellm.outputs import RequestOutput
from corellm.plugin.extensions import load_extensions
from corellm.scheduling.batch import ScheduledBatch
from corellm.worker.model_runner import ModelRunner
from corellm_kernels.cpu import library
from corellm_kernels.cpu.linear import PackedLinear as CompiledLinear
from corellm_kernels.fusion.attention import FusedAttention
from corellm_kernels.fusion.fusing import fuse
from corellm_kernels.fusion.mlp import FusedGatedMLP
from corellm_kernels.gpu.kernel_set import GPU_KERNELS
from corellm_kernels.int8_linear import Int8Linear
from corellm_testing.reference import Continuation, generate_one
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from tests.modelling.low_rank import AdapterKey, Factors, LowRank, Products, make_factors
from tests.modelling.other_key import OtherKey
from tests.text_models.parity import PROMPTS
from tests.worker.replayed_graph import ReplayedGraph
from tests.worker.tensor_attention import TensorAttention

SIZES = {
    f"model.layers.{layer}.{name}": size
    for layer in (0, 1)
    for name, size in {
        "self_attn.q_proj": (64, 64),
        "self_attn.v_proj": (64, 32),
        "mlp.gate_proj": (64, 96),
        "mlp.down_proj": (96, 64),
    }.items()
}
ADAPTERS: dict[str, Factors] = {name: make_factors(SIZES, seed) for seed, name in enumerate(("first", "second"))}
REQUESTS: list[tuple[str, str | None]] = [
    (PROMPTS[2], None), (PROMPTS[2], "first"), (PROMPTS[2], "second"),
    (PROMPTS[1], "second"), (PROMPTS[3], "first"), (PROMPTS[1], None),
]  # fmt: skip
LENGTH = 14

ENGINES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
    "swapped": {
        "max_num_batched_tokens": 64, "block_size": 8, "num_kv_blocks": 15, "preemption_mode": "swap",
    },
    "recomputed": {"max_num_batched_tokens": 64, "block_size": 8, "num_kv_blocks": 15},
    "unfused": {"fuse_layers": False},
    "not captured": {"enforce_eager": True},
}  # fmt: skip
"""15 blocks of 8 tokens hold the longest request, but not all together."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("llama"), intermediate_size=96, num_key_value_heads=2)


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[Continuation]:
    """What transformers generates, with the product of each request's factors in the weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    models: dict[str | None, Any] = {}
    for adapter in (None, *ADAPTERS):
        model = transformers.LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for name, (inward, outward) in ADAPTERS[adapter].items() if adapter else ():
            model.get_submodule(name).weight.data += outward @ inward
        models[adapter] = model
    return [
        generate_one(models[adapter], tokenizer(prompt, return_tensors="pt"), LENGTH) for prompt, adapter in REQUESTS
    ]


@pytest.fixture(params=["compiled", "off"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernels for CPUs: those that there are, or none."""
    chosen: str = request.param
    if chosen == "off":
        monkeypatch.setenv("CORELLM_CPU_KERNELS", "off")
        forget_library()
    elif library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    yield chosen
    monkeypatch.undo()
    forget_library()


def forget_library() -> None:
    library._library.cache_clear()
    library.unavailable.cache_clear()


def engine(path: Path, most: int = 2, **options: Any) -> LLM:
    """The model, with the extension installed at load; so many adapters run at a time."""
    with LowRank(ADAPTERS, most).installed():
        return LLM(str(path), **{"dtype": "float32", "max_model_len": 120, **options})


def prompt_of(prompt: str, adapter: str | None) -> dict[str, Any]:
    return {"prompt": prompt, "adapter": adapter}


def generate(llm: LLM, requests: list[tuple[str, str | None]]) -> list[RequestOutput]:
    """Outputs of requests that run together."""
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logprobs=0)  # steps can run ahead
    return generate_together(llm, [prompt_of(*request) for request in requests], [params] * len(requests))


def numbers_of(output: Any) -> tuple[list[int], list[float]]:
    """An output's tokens, and their log-probabilities to the last bit."""
    (completion,) = output.outputs
    return list(completion.token_ids), [
        step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
    ]


def require_equal(llm: LLM, wanted: list[Continuation]) -> list[Any]:
    outputs = generate(llm, REQUESTS)
    for output, want in zip(outputs, wanted, strict=True):
        tokens, logprobs = numbers_of(output)
        assert output.prompt_token_ids == want.prompt_token_ids
        assert tokens == want.token_ids
        assert logprobs == pytest.approx(want.logprobs, abs=1e-4)
    return outputs


# --- whole models ---------------------------------------------------------------------------------------------------


def test_adapters_choose_tokens(wanted: list[Continuation]) -> None:
    """One prompt without and with each adapter: dropped or mixed up, they would be seen below."""
    assert len({tuple(one.token_ids[:4]) for one in wanted[:3]}) == 3


@pytest.mark.parametrize("name", ENGINES)
def test_tokens_equal_those_of_merged_weights(path: Path, wanted: list[Continuation], kernels: str, name: str) -> None:
    """Different adapters and none in one batch: in chunks, from the prefix cache, preempted, captured, fused or not."""
    options = ENGINES[name]
    with engine(path, **options) as llm:
        runner = llm.engine.runner
        fused = kernels == "compiled" and options.get("fuse_layers", True)
        kinds = {type(module) for module in runner.model.modules()}
        assert any(issubclass(kind, (FusedAttention, FusedGatedMLP)) for kind in kinds) == fused
        captured = kernels == "compiled" and not options.get("enforce_eager")
        assert (runner.graphs is not None) == captured
        outputs = require_equal(llm, wanted)
        if options.get("enable_prefix_caching", True):
            outputs += require_equal(llm, wanted)
            assert any(output.num_cached_tokens for output in outputs)
        preempted = sum(output.metrics.num_preemptions for output in outputs)
        assert (preempted > 0) == ("num_kv_blocks" in options)
        llm.engine.scheduler.blocks.check_integrity()


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_results_are_the_requests_own(path: Path, options: dict[str, Any]) -> None:
    """Alone and among requests with other adapters, bit for bit; each adapter makes a difference."""
    if library.unavailable() is not None:
        pytest.skip("torch's products depend on the number of rows")
    with engine(path, enable_prefix_caching=False, **options) as llm:
        together = [numbers_of(output) for output in generate(llm, REQUESTS)]
        assert together == [numbers_of(generate(llm, [request])[0]) for request in REQUESTS]
    assert len({str(numbers) for numbers in together[:3]}) == 3


def test_cached_blocks_are_those_of_one_adapter(path: Path, wanted: list[Continuation]) -> None:
    """The same prompt finds nothing of another adapter's, nor of a request without."""
    with engine(path) as llm:
        for request, want in zip(REQUESTS[:3], wanted, strict=False):
            for is_cached in (False, True):
                (output,) = generate(llm, [request])
                assert (output.num_cached_tokens > 0) == is_cached
                assert numbers_of(output)[0] == want.token_ids


def test_captured_steps_find_their_rows(
    path: Path, wanted: list[Continuation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with CUDA graphs: what a step captured, padded to a larger size, replays on other requests' adapters."""
    launched = []
    launch = ModelRunner.launch_ahead
    monkeypatch.setattr(ModelRunner, "launch_ahead", lambda *args: (launched.append(1), launch(*args))[1])
    with engine(path, max_num_seqs=6, fuse_layers=False, attention_backend="reference") as llm:
        runner = llm.engine.runner
        runner.backend = TensorAttention()
        capture_graphs(runner, [1, 4, 6], max_blocks=8, position_rows=1, make_graph=ReplayedGraph)
        require_equal(llm, wanted)
    assert launched


def test_no_more_adapters_run_than_there_is_room_for(path: Path, wanted: list[Continuation]) -> None:
    """Requests of another one wait until those that run have ended."""
    for most in (1, 2):
        with engine(path, most) as llm:
            require_equal(llm, wanted)
            part = next(part for part in llm.engine.runner.parts if isinstance(part, Products))
            assert part.most_at_once == most


def test_an_adapter_that_cannot_be_loaded_fails_its_requests_alone(
    path: Path, wanted: list[Continuation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step with others, which get their tokens; and later ones are served.

    Errors of requests that have no chunk in the step, or are not there, are passed over.
    """

    def begin(part: Products, batch: ScheduledBatch) -> dict[str, CorellmError]:
        broken = [sequence.request_id for sequence in batch.new if sequence.part.get("adapter") == "second"]
        return {
            request_id: RequestFailedError("adapter 'second' cannot be read")
            for request_id in (*broken, *batch.released, "no request")
        }

    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    with engine(path) as llm:
        monkeypatch.setattr(Products, "begin", begin)
        for _ in range(2):
            outputs = llm.generate([prompt_of(*request) for request in REQUESTS], params, on_error="return")
            for (_, adapter), output, want in zip(REQUESTS, outputs, wanted, strict=True):
                if adapter == "second":
                    assert str(output.error) == "adapter 'second' cannot be read"
                else:
                    assert output.outputs[0].token_ids == want.token_ids
        llm.engine.scheduler.blocks.check_integrity()
    assert {adapter for _, adapter in REQUESTS} == {None, "first", "second"}


def test_a_request_that_fails_gives_nobody_its_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails in the step in which another ends: as many rows as before, and others' in the step ahead."""

    def begin(part: Products, batch: ScheduledBatch) -> dict[str, CorellmError]:
        return {new.request_id: RequestFailedError("no") for new in batch.new if new.part.get("adapter") == "second"}

    monkeypatch.setattr(Products, "begin", begin)
    with engine(path, max_num_seqs=6, fuse_layers=False, attention_backend="reference") as llm:
        runner, given = llm.engine.runner, llm.engine
        runner.backend = TensorAttention()
        capture_graphs(runner, [1, 4, 6], max_blocks=8, position_rows=1, make_graph=ReplayedGraph)
        wanted = generate(llm, [(PROMPTS[1], None)])[0].outputs[0].token_ids
        for length in range(2, 10):
            for name, prompt, tokens in (("short", PROMPTS[2], length), ("long", PROMPTS[1], LENGTH)):
                params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
                given.add_request(f"{name}-{length}", prompt, params)
            found: list[int] = []
            for number in range(LENGTH + 4):
                if number == 5:  # a chunk of one token, which a captured step may hold
                    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
                    given.add_request(f"failing-{length}", {"prompt_token_ids": [7], "adapter": "second"}, params)
                for output in given.step():
                    if output.request_id == f"long-{length}":
                        found = list(output.outputs[0].token_ids)
                    assert (output.error is not None) == output.request_id.startswith("failing")
            assert found == wanted


def test_keys_of_two_extensions(path: Path, wanted: list[Continuation]) -> None:
    """Each finds its own, in whatever order they are around a request's part; a prepared prompt keeps them."""
    with OtherKey().installed():
        llm = engine(path, 1)
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    with llm, LLM(str(path)) as without:
        inputs = llm.engine.input_processor
        prepared = [inputs.process({**prompt_of(*request), "other": 1}) for request in REQUESTS]
        assert [sorted(prompt.extra) for prompt in prepared[:2]] == [["other"], ["adapter", "other"]]
        for _ in range(2):
            outputs = llm.generate(prepared, params, use_tqdm=False)
            assert [output.outputs[0].token_ids for output in outputs] == [want.token_ids for want in wanted]
        part = next(part for part in llm.engine.runner.parts if isinstance(part, Products))
        assert part.most_at_once == 1
        with pytest.raises(PromptError, match="prepared with the key 'adapter', which is unknown here"):
            without.generate(prepared[1], params, use_tqdm=False)


def test_keys_of_a_conversation(path: Path) -> None:
    """`prompt_keys` do what they do in a prompt of the same tokens; what no extension reads is refused."""
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    messages = [{"role": "user", "content": "What is it?"}]
    found = []
    with engine(path) as llm:
        tokens = llm.engine.input_processor.process_chat(messages).token_ids
        for given in ({}, {"adapter": "first"}):
            chat = llm.chat(messages, params, prompt_keys=given)[0].outputs[0].token_ids
            assert chat == llm.generate({"prompt_token_ids": tokens, **given}, params)[0].outputs[0].token_ids
            found.append(chat)
        for wrong in ({"adaptor": "first"}, {"prompt": "first"}, "first"):
            with pytest.raises(InvalidParameterError) as caught:
                llm.chat(messages, params, prompt_keys=wrong)
            assert caught.value.param == "prompt_keys"
    assert found[0] != found[1]


def test_a_key_that_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two extensions read it, or it is the core's."""
    with LowRank(ADAPTERS).installed(), LowRank(ADAPTERS, name="other").installed():  # noqa: SIM117
        with pytest.raises(ContractError, match=r"both read the prompt key 'adapter'"):
            LLM(str(path))
    monkeypatch.setattr(AdapterKey, "name", "priority")
    with LowRank(ADAPTERS).installed(), pytest.raises(ContractError, match="'priority', which has a meaning already"):
        LLM(str(path))


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The extension as an installed distribution, for this process and those that it starts."""
    (tmp_path / "low_rank_of_tests.py").write_text(
        "from tests.modelling.low_rank import LowRank, make_factors\n"
        f"ADAPTERS = {{name: make_factors({SIZES!r}, seed) for seed, name in enumerate({list(ADAPTERS)!r})}}\n"
        "EXTENSION = LowRank(ADAPTERS)\n"
    )
    info = tmp_path / "low_rank_of_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: low-rank-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[corellm.extensions]\nlow-rank = low_rank_of_tests:EXTENSION\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    load_extensions.cache_clear()
    yield
    sys.modules.pop("low_rank_of_tests", None)
    load_extensions.cache_clear()


@pytest.mark.usefixtures("distribution")
def test_adapters_reach_an_engine_in_its_own_process(path: Path, wanted: list[Continuation]) -> None:
    params = SamplingParams(temperature=0, max_tokens=LENGTH, min_tokens=LENGTH)

    async def last(llm: ProcessLLM, request: tuple[str, str | None]) -> list[int]:
        async for output in llm.generate(prompt_of(*request), params):
            tokens = list(output.outputs[0].token_ids)
        return tokens

    async def main() -> list[list[int]]:
        llm = ProcessLLM(str(path), dtype="float32", max_model_len=120)
        try:
            return await asyncio.gather(*(last(llm, request) for request in REQUESTS))
        finally:
            llm.close()

    assert asyncio.run(main()) == [one.token_ids for one in wanted]


def test_an_unknown_key_and_a_wrong_value_are_refused(path: Path) -> None:
    with engine(path) as llm, pytest.raises(PromptError, match="adapter must be one of"):
        llm.generate({"prompt": "yes", "adapter": 3}, use_tqdm=False)
    with LLM(str(path)) as llm, pytest.raises(PromptError, match="unknown prompt key 'adapter'"):
        llm.generate({"prompt": "yes", "adapter": "first"}, use_tqdm=False)


def test_layers_without_an_addition_stay(path: Path) -> None:
    """With none at all the model is as if there were no such thing; with some, the others are."""
    with LLM(str(path)) as llm:
        assert not any(isinstance(module, AddedLinear) for module in llm.engine.runner.model.modules())
    with engine(path, fuse_layers=False) as llm:
        named = llm.engine.runner.model.named_modules()
        assert sorted(name for name, module in named if isinstance(module, AddedLinear)) == sorted(SIZES)


def test_additions_get_the_rows_of_all_tokens(path: Path) -> None:
    """Also behind the last attention, where fused layers leave out tokens that nobody samples from."""
    if library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    with LLM(str(path)) as llm:
        assert llm.engine.runner.trims
    with engine(path) as llm:
        assert not llm.engine.runner.trims


def test_a_layer_that_is_not_there(path: Path) -> None:
    wrong = LowRank({"first": {"model.layers.0.self_attn.q_prj": (torch.zeros(1, 64), torch.zeros(64, 1))}})
    with (
        wrong.installed(),
        pytest.raises(BrokenPluginError, match=r"'low-rank' of tests: offer_step_part.*did you mean 'model.layers.0"),
    ):
        LLM(str(path))


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda layer, x: x[..., :64], "none"),
        (lambda layer, x: x[..., :64] + layer(x[:, -1:]), "1 rows"),
        (lambda layer, x: layer(x) + layer(-x), "two inputs"),
    ],
)
def test_a_layer_that_gets_other_rows(
    path: Path, change: Callable[[nn.Module, Tensor], Tensor], rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at load, before what is added sees rows that are not its own."""
    name = "model.layers.0.mlp.down_proj"

    def forward(mlp: Any, x: Tensor) -> Tensor:
        return change(mlp.down_proj, mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x))

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    odd = LowRank({"first": {name: (torch.zeros(1, 96), torch.zeros(64, 1))}})
    with odd.installed(), pytest.raises(ContractError, match=rf"{name}, .* a step of 4 tokens ran it on {rows}"):
        LLM(str(path), dtype="float32", fuse_layers=False)


# --- layers ---------------------------------------------------------------------------------------------------------


class Scaled:
    """Adds each row's first input, times a number, to all outputs."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor, output: Tensor) -> None:
        output += self.factor * x[:, :1]


def packed_by_kernels(linear: nn.Linear) -> nn.Module:
    if library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    return CompiledLinear(linear)


MAKE: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "plain": lambda linear: linear,
    "packed": PackedLinear,
    "8 bits": Int8Linear,
    "packed by kernels": packed_by_kernels,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@torch.inference_mode()
def test_layers_of_every_kind(make: Callable[[nn.Linear], nn.Module]) -> None:
    """Two additions; what models ask of a layer is still there, and no weight is held twice."""
    model = nn.Sequential(make(nn.Linear(48, 64)))
    linears = LinearAdditions(model, model)
    before, x = model[0], torch.randn(1, 5, 48)
    plain, shapes = model(x), [p.shape for p in model.parameters()]
    linears.add("0", Scaled(2.0))
    linears.add("0", Scaled(-0.5))
    assert (model(x) - plain).equal((plain + 2.0 * x[..., :1] - 0.5 * x[..., :1]) - plain)
    assert model[0].weight is before.weight
    assert model[0].bias is before.bias
    assert linears.sizes["0"] == (model[0].in_features, model[0].out_features) == (48, 64)
    assert [p.shape for p in model.parameters()] == shapes


@torch.inference_mode()
def test_joined_layers_carry_additions_to_each() -> None:
    """Kernels of a GPU: gate, up and down are known by their names, also where the last adds to a residual."""
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96)
    original = nn.ModuleDict({"mlp": LlamaMLP(config)}).eval().requires_grad_(False)
    fused = nn.ModuleDict({"mlp": LlamaMLP(config)}).eval().requires_grad_(False)
    fused.load_state_dict(original.state_dict())
    assert len(fuse(fused, GPU_KERNELS)) == 1
    outputs = []
    for model in (original, fused):
        linears = LinearAdditions(model, model)
        assert linears.sizes == {"mlp.gate_proj": (64, 96), "mlp.up_proj": (64, 96), "mlp.down_proj": (96, 64)}
        for factor, name in enumerate(linears.sizes, 1):
            linears.add(name, Scaled(factor / 2))
        outputs.append(model["mlp"](torch.ones(1, 3, 64).cumsum(-1) / 64))
    torch.testing.assert_close(outputs[0], outputs[1])
    residual = torch.randn(1, 3, 64)
    mlp: Any = fused["mlp"]
    total = mlp.add_to(residual.clone(), torch.ones(1, 3, 64).cumsum(-1) / 64)
    torch.testing.assert_close(total, residual + outputs[0])


def test_layers_that_modules_share_are_left_out() -> None:
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared), "c": nn.Linear(4, 2)})
    assert list(LinearAdditions(model, model).sizes) == ["c"]
    assert list(LinearAdditions(model, model["b"]).sizes) == []
    assert list(LinearAdditions(model, model, [model]).sizes) == []


def test_additions_come_before_the_checks() -> None:
    """Later ones would be in no captured step, and nobody would have looked how the layer runs."""
    model = nn.Sequential(nn.Linear(2, 3))
    linears = LinearAdditions(model, model)
    linears.add("0", lambda x, output: None)
    linears.close()
    with pytest.raises(ContractError, match="in offer_step_part"):
        linears.add("0", lambda x, output: None)
