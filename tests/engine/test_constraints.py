"""Requests with a constraint on sampling: outputs obey it, are the request's own, and nobody else's end by it."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import CorellmError, InvalidParameterError, RequestFailedError
from corellm.sampling.extensions import SamplingExtensions
from corellm.sampling_params import ConstraintParams
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.model_runner import ModelRunner
from corellm_testing.together import generate_together
from tests.fixtures import random_image
from tests.sampling import automaton as extension
from tests.sampling.automaton import allowed, automata, automaton

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "block_size": 8}
LENGTH = 12
"""Outputs of automata that end have this many tokens."""
TEXT = "Look with care, one two three four five six seven. "
PROMPTS: list[Any] = [
    "yes",
    TEXT + "How many objects are there?",
    {"prompt": "USER: <image>\nWhat is this? ASSISTANT:", "multi_modal_data": {"image": random_image(40, 30, 1)}},
    TEXT * 2 + "left or right?",
]
CONSTRAINED: list[dict[str, Any]] = [
    {"temperature": 0, "constraint": automaton(LENGTH)},
    {"temperature": 0, "constraint": automaton(LENGTH, start=4), "logprobs": 1, "repetition_penalty": 1.3},
    {"temperature": 1.3, "seed": 1, "n": 2, "constraint": automaton(LENGTH, start=2)},
    {"temperature": 0.9, "seed": 2, "top_k": 40, "constraint": automaton(), "min_tokens": 18, "bad_words": ["the"]},
    {"temperature": 1.0, "seed": 3, "top_p": 0.9, "constraint": automaton(start=5), "ignore_eos": True, "logprobs": 0},
    {"temperature": 1.0, "seed": 4, "constraint": automaton(), "allowed_token_ids": range(3, 200), "ignore_eos": True},
    {"temperature": 0.8, "seed": 5, "constraint": automaton(start=1), "stop": ["e", "o"], "stop_token_ids": [9, 16]},
]
FREE: list[dict[str, Any]] = [{"temperature": 0, "ignore_eos": True}, {"temperature": 1.0, "seed": 6}]
REQUESTS = [
    (PROMPTS[number % len(PROMPTS)], SamplingParams(max_tokens=25, **given))
    for number, given in enumerate([*FREE, *CONSTRAINED])
]


@pytest.fixture(scope="module", autouse=True)
def _extension() -> Iterator[None]:
    with automata():
        yield


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), **OPTIONS, num_kv_blocks=200) as loaded:
        yield loaded


def told(outputs: Any) -> list[Any]:
    return [[(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in o.outputs] for o in outputs]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Any]:
    """What each request gives alone."""
    return told(llm.generate([prompt], [params], use_tqdm=False)[0] for prompt, params in REQUESTS)


def test_outputs_obey_their_constraints(llm: LLM, alone: list[Any]) -> None:
    """Every token is allowed by those before it; those that must end do."""
    vocab_size = llm.engine.input_processor.vocab_size
    (eos,) = llm.engine.eos_token_ids
    for (_, params), outputs in zip(REQUESTS, alone, strict=True):
        if params.constraint is None:
            continue
        length, start, *_ = extension.json.loads(params.constraint.definition)
        for token_ids, _, finish_reason, _ in outputs:
            for place, token in enumerate(token_ids):
                assert token in ([eos] if place == length else allowed(token_ids[:place], vocab_size, start=start))
            assert len(token_ids) <= length + 1
            assert finish_reason == "stop" or length > 25
            assert len(token_ids) >= params.min_tokens
    drawn = [outputs[0] for outputs in alone[-4:]]
    assert len(drawn[0][0]) >= 18
    assert len(drawn[1][0]) == len(drawn[2][0]) == 25
    assert set(drawn[2][0]) <= {*range(3, 200)}
    assert drawn[3][2] == "stop"


def test_greedy_tokens_are_those_of_transformers(llm: LLM, tiny_llava: Path) -> None:
    """Its `generate` with the same tokens allowed."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    tokenizer = llm.engine.context.tokenizer
    vocab_size = llm.engine.input_processor.vocab_size
    for prompt in (PROMPTS[0], PROMPTS[1], PROMPTS[3]):
        given = tokenizer(prompt, return_tensors="pt")
        first = given["input_ids"].shape[1]

        def may(_: int, token_ids: torch.Tensor, first: int = first) -> list[int]:
            outputs = token_ids[first:].tolist()
            return allowed(outputs, vocab_size, start=3) if len(outputs) < LENGTH else [tokenizer.eos_token_id]

        wanted = model.generate(**given, do_sample=False, max_new_tokens=25, prefix_allowed_tokens_fn=may)
        params = SamplingParams(temperature=0, max_tokens=25, constraint=automaton(LENGTH, start=3))
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.outputs[0].token_ids == wanted[0, first:].tolist()


def test_results_do_not_depend_on_the_batch(llm: LLM, alone: list[Any]) -> None:
    prompts, params = zip(*REQUESTS, strict=True)
    assert told(llm.generate(list(prompts), list(params), use_tqdm=False)) == alone


@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_results_do_not_depend_on_preemptions_and_chunks(
    preemption_mode: str, tiny_llava: Path, alone: list[Any]
) -> None:
    """The requests that came last, all of them with constraints, are preempted: those are made again."""
    scarce = {"num_kv_blocks": 24, "max_num_batched_tokens": 24, "preemption_mode": preemption_mode}
    with LLM(str(tiny_llava), **OPTIONS, **scarce) as llm:
        assert told(generate_together(llm, *zip(*REQUESTS, strict=True))) == alone
        assert llm.engine.scheduler.get_stats().num_preemptions > 2


@pytest.mark.parametrize("num_kv_blocks", [200, 24])
def test_results_do_not_depend_on_steps_ahead(
    num_kv_blocks: int, tiny_llava: Path, alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the step after one is launched before its tokens are known, and then has its masks."""
    monkeypatch.setattr(DecodeGraphs, "asynchronous", True)
    waited: list[int] = []
    sample_ahead = ModelRunner.sample_ahead

    def noted(self: ModelRunner, step: Any, running: Any) -> Any:
        waits, before = step.logits is not None, len(step.chunks)
        step = sample_ahead(self, step, running)
        waited.extend([before - len(step.chunks)] * waits)
        return step

    monkeypatch.setattr(ModelRunner, "sample_ahead", noted)
    with LLM(str(tiny_llava), **OPTIONS, num_kv_blocks=num_kv_blocks) as llm:
        if llm.engine.runner.graphs is None:
            pytest.skip("no kernels here whose steps are recorded")
        assert told(generate_together(llm, *zip(*REQUESTS, strict=True))) == alone
        assert bool(llm.engine.scheduler.get_stats().num_preemptions) == (num_kv_blocks < 200)
        assert not llm.engine.runner._states
    assert len(waited) > 8
    if num_kv_blocks == 200:
        assert any(waited)  # some ended in the step before, by a token that was not known


def test_a_constraint_that_fails_ends_its_request_alone(llm: LLM, alone: list[Any]) -> None:
    """When it is made, fills, accepts or allows nothing: a typed error each, and the others' outputs are theirs."""
    faults = [("fill", 3), ("accept", 2), ("no token", 4)]
    broken = [
        SamplingParams(temperature=0, max_tokens=9, constraint=automaton(fails=fails, at=at)) for fails, at in faults
    ]
    prompts, params = zip(*REQUESTS, strict=True)
    outputs = llm.generate(["yes"] * 3 + list(prompts), [*broken, *params], use_tqdm=False, on_error="return")
    assert told(outputs[3:]) == alone
    errors = [output.error for output in outputs[:3]]
    assert [type(error) for error in errors] == [RequestFailedError, RequestFailedError, InvalidParameterError]
    told_of = ("token 3: .* in fill", "token 3: .* in accept", "token 4: constraint leave no token")
    for error, words in zip(errors, told_of, strict=True):
        with pytest.raises(CorellmError, match=words):
            raise error  # type: ignore[misc]
    assert not llm.engine.runner._states
    assert llm.engine.scheduler.blocks.num_free_blocks == llm.engine.scheduler.blocks.capacity


@pytest.mark.parametrize(
    ("constraint", "error", "words"),
    [
        (ConstraintParams("grammar", "x"), InvalidParameterError, "the kind 'grammar' .*known: automaton"),
        (ConstraintParams("automaton", "x"), InvalidParameterError, "no automaton: 'x'"),
        (automaton(fails="always"), RequestFailedError, "making the constraint 'automaton' failed with RuntimeError"),
    ],
)
def test_what_cannot_be_made_is_refused(
    llm: LLM, constraint: ConstraintParams, error: type[CorellmError], words: str
) -> None:
    """Before the request is queued."""
    with pytest.raises(error, match=words):
        llm.engine.add_request("r", "yes", SamplingParams(constraint=constraint))
    assert not llm.engine.has_unfinished_requests()


def test_a_constraint_is_first_checked_beside_the_engine(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `AsyncLLM` in a thread that prepares prompts: a check may take seconds, in which the engine goes on."""
    check, threads = SamplingExtensions.check, list[str]()

    def noted(kinds: SamplingExtensions, params: ConstraintParams) -> None:
        threads.append(threading.current_thread().name)
        check(kinds, params)

    monkeypatch.setattr(SamplingExtensions, "check", noted)
    engine = AsyncLLM(str(tiny_llava), **OPTIONS, num_kv_blocks=60)

    async def main() -> None:
        for prompt in ("yes", PROMPTS[2]):
            async for output in engine.generate(prompt, SamplingParams(constraint=automaton(3))):
                last = output
            assert len(last.outputs[0].token_ids) == 4
        with pytest.raises(InvalidParameterError, match="no automaton"):
            async for _ in engine.generate("yes", SamplingParams(constraint=ConstraintParams("automaton", "x"))):
                pass

    try:
        asyncio.run(main())
        assert [name for name in threads if name != engine._thread.name] == threads[::2]
    finally:
        engine.close()


def test_an_engine_in_its_own_process(
    tiny_llava: Path, llm: LLM, alone: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extension is installed there, too: the same output, the same errors."""
    shutil.copy(extension.__file__, tmp_path / "automaton_extension.py")
    info = tmp_path / "automata-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: automata\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[corellm.extensions]\nautomata = automaton_extension:Automata\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    there = ProcessLLM(str(tiny_llava), **OPTIONS, num_kv_blocks=200)

    async def final(prompt: Any, params: SamplingParams) -> Any:
        async for output in there.generate(prompt, params):
            last = output
        return last

    async def main() -> None:
        outputs = [await final(prompt, params) for prompt, params in REQUESTS[2:5]]
        assert told(outputs) == alone[2:5]
        with pytest.raises(RequestFailedError, match="in fill"):
            await final("yes", SamplingParams(constraint=automaton(fails="fill", at=2)))
        with pytest.raises(InvalidParameterError, match="kinds that are known: automaton"):
            await final("yes", SamplingParams(constraint=ConstraintParams("grammar", "")))

    try:
        asyncio.run(main())
    finally:
        there.close()
