"""Caches are emptied, figures counted, the model reached and steps traced, between requests and beside them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tqdm.auto import tqdm

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.engine.metrics import Counter, Gauge, Vector
from corellm.errors import EngineDeadError, InvalidParameterError
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
TEXT = "USER: tell me about the weather of this week ASSISTANT:"


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(tiny_llava, dtype="float32", block_size=8, scheduling_policy="priority", max_num_seqs=1) as loaded:
        yield loaded


def ask(llm: LLM, prompt: Any = TEXT, params: SamplingParams = GREEDY) -> Any:
    return llm.generate(prompt, params, use_tqdm=False)[0]


def with_image() -> dict[str, Any]:
    return {"prompt": "USER: <image> what? ASSISTANT:", "multi_modal_data": {"image": random_image(40, 30, 7)}}


def figures(llm: LLM) -> dict[str, float]:
    return {metric.name.removeprefix("corellm:"): metric.value for metric in llm.get_metrics()}


def test_token_ids_in_every_form_are_like_the_text(llm: LLM) -> None:
    """Lists, arrays and tensors, one or many, alone or in a dictionary."""
    want = ask(llm).outputs[0].token_ids
    ids = llm.get_tokenizer()(TEXT)["input_ids"]
    for one in (ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(token) for token in ids]):
        assert [o.outputs[0].token_ids for o in llm.generate(one, GREEDY, use_tqdm=False)] == [want]
        assert ask(llm, {"prompt_token_ids": one}).outputs[0].token_ids == want
    for many in ([ids, ids], np.array([ids, ids]), torch.tensor([ids, ids]), [TEXT, ids]):
        assert [o.outputs[0].token_ids for o in llm.generate(many, GREEDY, use_tqdm=False)] == [want, want]


def test_each_request_gets_its_priority(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the prompts' order, in place of what a prompt itself says; without any, a prompt's own counts."""
    seen: list[int] = []
    add = llm.engine.scheduler.add_request
    monkeypatch.setattr(llm.engine.scheduler, "add_request", lambda r: (seen.append(r.priority), add(r))[1])
    prompts = [TEXT, {"prompt": TEXT, "priority": 9}, [5, 6, 7]]
    llm.generate(prompts, GREEDY, use_tqdm=False, priority=[3, 1, 2])
    llm.generate(prompts, GREEDY, use_tqdm=False)
    assert seen == [3, 1, 2, 0, 9, 0]


def test_a_prefix_is_forgotten(llm: LLM) -> None:
    """After a reset the same prompt is computed anew; not while a request is in flight."""
    want = ask(llm)
    assert ask(llm).num_cached_tokens > 0
    assert llm.reset_prefix_cache() is True
    again = ask(llm)
    assert again.num_cached_tokens == 0
    assert again.outputs[0].token_ids == want.outputs[0].token_ids
    llm.engine.add_request("held", TEXT, GREEDY)
    llm.engine.step()
    assert llm.reset_prefix_cache() is False
    assert llm.engine.abort_request("held", silently=True)
    ask(llm)


def test_items_are_forgotten_everywhere(llm: LLM) -> None:
    """The processor's cache and the encoder's outputs, in the engine and in the worker; the output stays the same."""
    want = ask(llm, with_image()).outputs[0].token_ids
    worker, cache = llm.engine.runner.encoders, llm.engine.input_processor.mm_processor.cache
    assert len(cache) > 0
    assert worker._outputs
    llm.reset_mm_cache()
    llm.reset_prefix_cache()
    assert len(cache) == 0
    assert not worker._outputs
    llm.engine.scheduler.encoder_cache.check_integrity()
    assert ask(llm, with_image()).outputs[0].token_ids == want


def test_items_in_flight_are_kept(llm: LLM) -> None:
    """A reset while a request waits for its image's embeddings takes nothing from it."""
    want = ask(llm, with_image()).outputs[0].token_ids
    llm.engine.add_request("held", with_image(), GREEDY)
    llm.reset_mm_cache()
    outputs = llm.engine.step()
    llm.reset_mm_cache()
    while llm.engine.has_unfinished_requests():
        outputs = llm.engine.step()
    assert outputs[-1].outputs[0].token_ids == want
    llm.engine.scheduler.encoder_cache.check_integrity()


def test_figures_count_what_was_asked(llm: LLM) -> None:
    """Tokens in and out, and how many were found in the caches, against the outputs' own numbers."""
    llm.reset_prefix_cache()
    llm.reset_mm_cache()
    before = figures(llm)
    outputs = [ask(llm, with_image()), ask(llm, with_image())]
    grown = {name: value - before[name] for name, value in figures(llm).items()}
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    assert grown["prompt_tokens"] == grown["prefix_cache_queries"] == num_prompt_tokens
    assert grown["prefix_cache_hits"] == sum(output.num_cached_tokens for output in outputs) > 0
    assert grown["generation_tokens"] == 8
    assert (grown["mm_cache_queries"], grown["mm_cache_hits"]) == (2, 1)
    assert {name: before[name] for name in ("num_requests_running", "num_requests_waiting")} == {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
    }
    for metric in llm.get_metrics():
        assert isinstance(metric, (Counter, Gauge, Vector))
        assert metric.name.startswith("corellm:")


def test_the_model_is_reached(llm: LLM) -> None:
    """`apply_model` gives the module itself, and what a function returns, in a list."""
    (model,) = llm.apply_model(lambda model: model)
    assert isinstance(model, nn.Module)
    assert llm.apply_model(lambda m: sum(p.numel() for p in m.parameters())) == [
        sum(p.numel() for p in model.parameters())
    ]


def test_a_trace_has_the_steps(llm: LLM, tmp_path: Path) -> None:
    """A JSON file with torch's operators in it; two at once are refused, and so is ending none."""
    file = tmp_path / "trace.json"
    llm.start_profile(file)
    with pytest.raises(InvalidParameterError, match="one at a time"):
        llm.start_profile()
    with ThreadPoolExecutor(1) as other, pytest.raises(InvalidParameterError, match="thread"):
        other.submit(llm.stop_profile).result()
    ask(llm)
    assert llm.stop_profile() == file
    names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"aten::mm", "aten::addmm", "aten::linear", "corellm::linear"} & names
    with pytest.raises(InvalidParameterError, match="no trace"):
        llm.stop_profile()


def test_closing_ends_a_trace(tiny_llava: Path, tmp_path: Path) -> None:
    """It is written, by `LLM` and by `AsyncLLM`, and the next one can begin."""
    with LLM(tiny_llava) as closed:
        closed.start_profile(tmp_path / "first.json")
    closing = AsyncLLM(tiny_llava)
    asyncio.run(closing.start_profile(tmp_path / "second.json"))
    closing.close()
    for name in ("first.json", "second.json"):
        assert "traceEvents" in json.loads((tmp_path / name).read_text())


def test_a_progress_bar_of_ones_own(llm: LLM) -> None:
    """What `use_tqdm` makes gets the number of prompts, and is counted up to it and closed."""
    made: list[Any] = []

    def make(**kwargs: Any) -> Any:
        made.append(tqdm(**kwargs, disable=False, delay=60))
        return made[0]

    llm.generate([TEXT, TEXT], GREEDY, use_tqdm=make)
    (bar,) = made
    assert (bar.n, bar.total, bar.disable) == (2, 2, True)  # a closed bar is disabled


def test_a_closed_engine_says_so(tiny_llava: Path) -> None:
    """None of it fails in a library."""
    with LLM(tiny_llava) as closed:
        pass
    for call in (closed.reset_prefix_cache, closed.reset_mm_cache, lambda: closed.apply_model(type)):
        with pytest.raises(EngineDeadError):
            call()


def test_the_same_from_coroutines(tiny_llava: Path, tmp_path: Path) -> None:
    """In the engine's thread, beside a request in flight; afterwards the engine's health is told."""
    llm = AsyncLLM(tiny_llava, dtype="float32")

    async def main() -> None:
        await llm.check_health()
        assert llm.is_running
        assert not llm.errored
        assert await llm.get_tokenizer() is llm.engine.context.tokenizer
        await llm.start_profile(tmp_path / "trace.json")
        async for _ in llm.generate(TEXT, SamplingParams(max_tokens=3, ignore_eos=True), "mine"):
            assert len(await llm.get_metrics()) > 5
        assert (await llm.stop_profile()).stat().st_size > 1000
        assert "aten::" in (tmp_path / "trace.json").read_text()
        assert await llm.reset_prefix_cache() is True
        await llm.reset_mm_cache()
        assert await llm.apply_model(lambda model: isinstance(model, nn.Module)) == [True]

    asyncio.run(main())
    llm.close()
    assert llm.errored
    with pytest.raises(EngineDeadError):
        asyncio.run(llm.check_health())


def test_several_are_aborted_at_once(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`abort` takes one name or many."""
    llm = AsyncLLM(tiny_llava, dtype="float32")
    endless = SamplingParams(max_tokens=900, ignore_eos=True)
    step = llm.engine.step
    begun: set[str] = set()

    def step_both() -> Any:
        """No step before the engine has both requests, so that they are aborted together."""
        if begun or len(llm.engine.output_processor) == 2:
            return step()
        time.sleep(0.001)
        return []

    monkeypatch.setattr(llm.engine, "step", step_both)

    async def ended(name: str) -> str | None:
        reason = None
        async for output in llm.generate(TEXT, endless, name):
            reason = output.outputs[0].finish_reason
            begun.add(name)
            if begun == {"a", "b"}:
                await llm.abort(["a", "b"])
        return reason

    async def main() -> list[str | None]:
        return await asyncio.gather(ended("a"), ended("b"))

    assert asyncio.run(main()) == ["abort", "abort"]
    llm.close()
