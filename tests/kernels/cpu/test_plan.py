"""A recorded plan gives what the step gives, on other inputs than it was recorded with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corellm import LLM, SamplingParams
from corellm.attention.graph import NotCapturable
from corellm.worker import decode_graphs
from corellm.worker.decode_graphs import StaticInputs
from corellm_kernels.cpu.activations import activation
from corellm_kernels.cpu.linear import PackedLinear
from corellm_kernels.cpu.memory import PlanMemory
from corellm_kernels.cpu.norms import rms_norm
from corellm_kernels.cpu.plan import RecordedPlan
from corellm_testing.together import generate_together
from tests.fixtures import random_image


def test_a_replay_is_the_step_on_the_memory_as_it_is_now() -> None:
    """Kernels, torch's functions, views, functions in place, and temporary tensors that nobody holds any more."""
    inner, outer = (PackedLinear(nn.Linear(24, 24).requires_grad_(False)) for _ in range(2))
    weight, x, log = torch.rand(24), torch.randn(5, 24), torch.zeros(5, 24)

    def step() -> Tensor:
        y = rms_norm(x, weight, 1e-6)
        y = activation(inner(y).view(5, 4, 6).flatten(1), "silu") + torch.cat([x[:, 12:], x[:, :12]], dim=1).sin()
        log.add_(y)
        return outer(y.t().contiguous().t()).mul_(2.0)

    plan = RecordedPlan(PlanMemory())
    with torch.inference_mode():
        output = plan.capture(step)
        assert torch.equal(output, step())
        for seed in range(3):
            gc.collect()
            x.copy_(torch.randn(5, 24, generator=torch.Generator().manual_seed(seed)))
            log.zero_()
            plan.replay()
            seen, logged = output.clone(), log.clone()
            log.zero_()
            assert torch.equal(seen, step())
            assert torch.equal(logged, log)


def test_plans_share_the_memory_of_what_is_not_needed_any_more() -> None:
    """Ten plans need no more than one, and each gives its own result, in any order."""
    layers = [PackedLinear(nn.Linear(64, 64).requires_grad_(False)) for _ in range(6)]
    weight, inputs = torch.rand(64), torch.randn(10, 5, 64)
    outputs = torch.zeros(10, 5, 64)

    def step(i: int) -> Tensor:
        x = inputs[i]
        for layer in layers:
            x = x + rms_norm(layer(x), weight, 1e-6).sin()
        return outputs[i].copy_(layers[0](x))

    memory = PlanMemory()
    plans, sizes = [RecordedPlan(memory) for _ in range(10)], []
    with torch.inference_mode():
        for i, plan in enumerate(plans):
            plan.capture(partial(step, i))
            sizes.append(memory.nbytes)
        assert len(set(sizes)) == 1
        inputs.normal_()
        wanted = torch.stack([step(i).clone() for i in range(10)])
        outputs.zero_()
        for i in (3, 0, 9, 3, 1, 2, 8, 7, 6, 5, 4):
            plans[i].replay()
        assert torch.equal(outputs, wanted)


def test_results_of_torch_lie_in_the_shared_memory() -> None:
    """In the order of their dimensions; a chain of them needs no more than its longest-lived; replays write there."""
    memory, x = PlanMemory(), torch.randn(2, 3, 512)

    def step() -> Tensor:
        y = x.transpose(1, 2) * 2.0
        assert y.stride() == (1536, 1, 512)
        for _ in range(9):
            y = y.to(torch.bfloat16).float().cumsum(dim=1).clone() + (y > 0)
        values, places = y.max(dim=1)
        return values + places.sum(dim=-1, keepdim=True)

    with torch.inference_mode():
        plan = RecordedPlan(memory)
        output = plan.capture(step)
        assert memory.nbytes < 9 * x.nbytes
        for _ in range(3):
            x.normal_()
            plan.replay()
            assert torch.equal(output, step())


def test_a_tensor_keeps_its_memory_as_long_as_a_view_of_it_lives() -> None:
    memory = PlanMemory()
    view = memory.empty((3, 5), torch.float32)[1:]
    other = memory.empty((3, 5), torch.float32)
    assert view.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
    place, nbytes = view.untyped_storage().data_ptr(), memory.nbytes
    alias = memory.alias(view)
    del view
    assert memory.empty((2, 2), torch.bfloat16).data_ptr() == place == alias.untyped_storage().data_ptr()
    assert memory.empty((0, 4), torch.float32).shape == (0, 4)
    assert memory.nbytes == nbytes


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a value on the host": (lambda x: x + x.sum().item(), r"torch.Tensor.item "),
    "a branch": (lambda x: x + 1 if (x > 3).any() else x, r"torch.Tensor.__bool__ "),
    "a list": (lambda x: x * x.tolist()[0], r"torch.Tensor.tolist "),
    "an array": (lambda x: x + torch.tensor(np.asarray(x)), r"torch.Tensor.__array__ "),
    "a number": (lambda x: x * float(x[0]), r"torch.Tensor.__float__ "),
    "an index": (lambda x: x + [1, 2, 3][x[:1].long()], r"torch.Tensor.__index__ "),
    "a range": (lambda x: x + torch.arange(x[0].long()).sum(), "reads a value"),
    "a mask": (lambda x: x[x > 0], "index.Tensor .*shape"),
    "a shape by value": (lambda x: x.nonzero(), "nonzero.default .*shape"),
    "random numbers": (lambda x: x + torch.rand(3), "rand.default draws random numbers"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_replayed_is_refused(kind: str) -> None:
    step, reason = REFUSED[kind]
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode, pytest.raises(NotCapturable, match=reason):
            RecordedPlan(PlanMemory()).capture(lambda: step(torch.ones(3)))


def test_constants_and_indices_of_a_step() -> None:
    """A constant is new in every replay; an index by numbers takes what they are then."""
    x, at = torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 2])

    def step() -> Tensor:
        constant = torch.tensor([0.0, 1.0, 2.0])
        constant += x
        return constant[at]

    with torch.inference_mode():
        plan = RecordedPlan(PlanMemory())
        output = plan.capture(step)
        for numbers in ([0, 2], [1, 1], [2, 0]):
            at.copy_(torch.tensor(numbers))
            x.add_(1)
            plan.replay()
            assert output.tolist() == step().tolist()


def test_a_result_outlives_its_plan() -> None:
    memory = PlanMemory()
    result = memory.empty((1000,), torch.float32).fill_(1.0)
    del memory
    gc.collect()
    assert [torch.zeros(1000) for _ in range(20)]
    assert result.sum() == 1000


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A LLaVA, a Qwen2-VL with its three kinds of positions, and a BLIP-2, whose decoder has other layers."""
    from corellm_blip2.tiny import make_tiny_checkpoint as make_blip2
    from corellm_llava.tiny import make_tiny_checkpoint as make_llava
    from corellm_qwen_vl.tiny import make_tiny_checkpoint as make_qwen

    makers = {"llava": make_llava, "qwen2-vl": make_qwen, "blip2": make_blip2}
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in makers.items()}


PROMPTS = {
    "llava": "USER: <image>\nWhat is this? ASSISTANT:",
    "qwen2-vl": "<|vision_start|><|image_pad|><|vision_end|>What is this?",
    "blip2": "Question: What is this? Answer:",
}


@pytest.mark.parametrize("family", PROMPTS)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_planned_steps_give_the_tokens_of_eager_ones(
    family: str, kv_cache_dtype: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of different lengths, with images and without: batches of every size, several times each.

    Padded to a larger size until a capture is worth it, and captured at once.
    """
    prompts: list[Any] = [
        {"prompt": PROMPTS[family], "multi_modal_data": {"image": random_image(40, 30, i)}} for i in range(3)
    ]
    prompts += ["Hello", "What is the capital of France, and why? " * 4, "One more"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (3, 20, 9, 14, 6, 17)]
    options: dict[str, Any] = {
        "dtype": "float32", "max_model_len": 256, "num_kv_blocks": 128, "kv_cache_dtype": kv_cache_dtype
    }  # fmt: skip
    outputs: list[Any] = []
    sizes: list[int] = []
    fill = StaticInputs.fill
    monkeypatch.setattr(
        StaticInputs, "fill", lambda self, batch, size, *rest: (sizes.append(size), fill(self, batch, size, *rest))[1]
    )
    for eager, cost in ((True, 0.0), (False, 2.0), (False, 0.0)):
        sizes.clear()
        monkeypatch.setattr(decode_graphs, "_CAPTURE_COST", cost)
        with LLM(str(checkpoints[family]), enforce_eager=eager, **options) as llm:
            outputs.append([o.outputs[0].token_ids for o in generate_together(llm, prompts, params)])
            assert (llm.engine.runner.graphs is None) == eager
        assert eager or (set(sizes) >= {1, 2, 3, 4, 5}) == (cost == 0)
    assert outputs[0] == outputs[1] == outputs[2]
