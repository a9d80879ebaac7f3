"""Behind the last attention, layers compute the tokens that are sampled only; where they cannot, all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from corellm import LLM, SamplingParams
from corellm.loading.dummy_steps import check_trimming
from corellm.worker.model_runner import ModelRunner

PROMPT = "USER: tell me about the weather of this week ASSISTANT:"
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(tiny_llava, dtype="float32", fuse_layers=True) as loaded:
        yield loaded


@pytest.fixture
def runner(llm: LLM) -> Iterator[ModelRunner]:
    found = llm.engine._runner
    assert found is not None
    before = found.trims
    yield found
    found.trims = before


def last_mlp(runner: ModelRunner) -> nn.Module:
    module: nn.Module = runner._language_model.layers[-1].mlp
    return module


def rows_seen(runner: ModelRunner, call: Callable[[], Any]) -> tuple[list[int], Any]:
    """Rows of the last MLP's input in each of its calls, and what the call returns."""
    mlp, seen = last_mlp(runner), list[int]()
    original = mlp.add_to if hasattr(mlp, "add_to") else mlp.forward

    def spy(*args: torch.Tensor) -> Any:
        seen.append(args[-1].shape[1])
        return original(*args)

    setattr(mlp, original.__name__, spy)
    try:
        return seen, call()
    finally:
        delattr(mlp, original.__name__)


def outputs_of(llm: LLM, params: SamplingParams = GREEDY) -> list[Any]:
    llm.reset_prefix_cache()
    return llm.generate(PROMPT, params, use_tqdm=False)


def test_tokens_that_are_not_sampled_are_left_out(llm: LLM, runner: ModelRunner) -> None:
    """One row for a prompt, and the same tokens as with all rows."""
    assert runner.trims
    seen, outputs = rows_seen(runner, lambda: outputs_of(llm))
    assert seen[0] == 1
    runner.trims = False
    seen, wanted = rows_seen(runner, lambda: outputs_of(llm))
    assert seen[0] == sum(len(output.prompt_token_ids) for output in wanted)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in wanted]


def test_scores_of_the_prompt_need_all_tokens(llm: LLM, runner: ModelRunner) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    seen, outputs = rows_seen(runner, lambda: outputs_of(llm, params))
    assert seen[0] == sum(len(output.prompt_token_ids) for output in outputs)
    assert all(len(output.prompt_logprobs) == len(output.prompt_token_ids) for output in outputs)


def test_a_step_without_a_sampled_token(llm: LLM, runner: ModelRunner) -> None:
    """It computes one row."""
    prompt = {"prompt_token_ids": [100 + n % 50 for n in range(300)]}
    wanted = llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    with LLM(llm.engine.context.model_path, dtype="float32", max_num_batched_tokens=64) as chunked:
        assert chunked.engine._runner is not None
        seen, outputs = rows_seen(chunked.engine._runner, lambda: chunked.generate(prompt, GREEDY, use_tqdm=False))
    assert seen[:5] == [1] * 5
    assert outputs[0].outputs[0].token_ids == wanted


def test_arguments_of_an_adapter_need_all_tokens(
    llm: LLM, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have a row for each token, as those of DeepStack."""
    embed = runner.embed
    monkeypatch.setattr(runner, "embed", lambda *given: (embed(*given)[0], {"output_attentions": False}))
    seen, outputs = rows_seen(runner, lambda: outputs_of(llm))
    assert seen[0] == len(outputs[0].prompt_token_ids)


def test_a_layer_that_attends_behind_the_last_gets_an_error(runner: ModelRunner) -> None:
    """The caches are in the order in which layers attended when the model was loaded."""
    decoder: Any = runner._language_model
    layers = decoder.layers
    decoder.layers = nn.ModuleList(reversed(layers))
    try:
        check_trimming(runner)
    finally:
        decoder.layers = layers
    assert not runner.trims


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        ("by an error", "it fails with IndexError: five tokens are wanted"),
        ("by other numbers", "hidden states"),
    ],
)
def test_a_decoder_that_needs_all_tokens_gets_them(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, breaks: str, reason: str
) -> None:
    """Something behind the last layer that looks at all tokens; found out when a model is loaded, and logged."""
    norm = runner._language_model.norm
    forward = norm.forward

    def over_tokens(hidden: torch.Tensor) -> torch.Tensor:
        if breaks == "by an error" and hidden.shape[1] != 5:
            raise IndexError("five tokens are wanted")
        return forward(hidden) + hidden.mean(dim=1, keepdim=True)

    monkeypatch.setattr(norm, "forward", over_tokens)
    with caplog.at_level("INFO", logger="corellm.loading.dummy_steps"):
        check_trimming(runner)
    assert not runner.trims
    (logged,) = caplog.messages
    assert logged.startswith("prompts take longer")
    assert reason in logged
    monkeypatch.undo()
    check_trimming(runner)
    assert runner.trims
