"""Beam search gives what transformers' `generate(num_beams=)` gives: the same outputs with the same scores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, AsyncLLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import InvalidParameterError, PromptError
from corellm.outputs import Logprob, RequestOutput
from corellm_decoding import BeamSearchParams
from corellm_decoding.beams import Beams
from extensions.vllm.tests.kinds import CHECKPOINTS
from tests.fixtures import random_image

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 8}
IMAGE = random_image(40, 30, 1)
WITH_IMAGE = {"prompt": "USER: <image>\nWhat is this? ASSISTANT:", "multi_modal_data": {"image": IMAGE}}
SETTINGS: list[dict[str, Any]] = [
    {"length_penalty": penalty, "early_stopping": early}
    for penalty, early in product((1.0, 0.0, -0.7, 2.5), (False, True, "never"))
]
Found = list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    CHECKPOINTS["tiny/llama"](path)
    return path


@pytest.fixture(scope="module")
def llama(tiny_llama: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llama), **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def llava(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), **OPTIONS | {"max_model_len": 120}) as llm:
        yield llm


def found(output: RequestOutput) -> Found:
    return [(one.token_ids, one.score) for one in output.outputs]  # type: ignore[attr-defined]


def expected(model: Any, inputs: dict[str, Any], *, width: int, count: int, eos: list[int], **more: Any) -> Found:
    """What transformers finds, without its padding."""
    num_prompt = inputs["input_ids"].shape[1]
    made = model.generate(
        **inputs, num_beams=width, num_return_sequences=width, max_new_tokens=count, do_sample=False,
        eos_token_id=eos or None, pad_token_id=0, return_dict_in_generate=True, output_scores=True, **more,
    )  # fmt: skip
    outputs = []
    for row, score in zip(made.sequences[:, num_prompt:].tolist(), made.sequences_scores.tolist(), strict=True):
        end = min((row.index(token) + 1 for token in eos if token in row), default=len(row))
        outputs.append((row[:end], score))
    return outputs


def check(got: Found, want: Found) -> None:
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want]
    assert [score for _, score in got] == pytest.approx([score for _, score in want], abs=1e-4)


@pytest.mark.parametrize("eos", [(), (225,), (47, 118, 225, 307)])
def test_text(llama: LLM, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, eos: tuple[int, ...]) -> None:
    """With none, one and several tokens that end an output, each penalty and each rule of stopping, in one batch."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    prompts = [[5, 9, 13], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39], [8]]
    monkeypatch.setattr(llama.engine, "eos_token_ids", frozenset(eos))
    ends = 0
    for width, more in ((3, one) for one in SETTINGS):
        outputs = llama.beam_search(prompts, BeamSearchParams(beam_width=width, max_tokens=9, **more))
        for prompt, output in zip(prompts, outputs, strict=True):
            want = expected(model, {"input_ids": torch.tensor([prompt])}, width=width, count=9, eos=list(eos), **more)
            check(found(output), want)
            assert [one.finish_reason for one in output.outputs] == [
                "stop" if tokens[-1] in eos else "length" for tokens, _ in want
            ]
            ends += sum(tokens[-1] in eos for tokens, _ in want)
    assert (ends > 0) is (len(eos) > 0)


def test_an_image(llava: LLM, tiny_llava: Path) -> None:
    """Of a prompt with an image, beside one without; another image makes other outputs."""
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    model = transformers.AutoModelForImageTextToText.from_pretrained(tiny_llava, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    inputs = processor(text=WITH_IMAGE["prompt"], images=IMAGE, return_tensors="pt")
    eos = sorted(llava.engine.eos_token_ids)
    params = BeamSearchParams(beam_width=4, max_tokens=8, length_penalty=0.5)
    other = {**WITH_IMAGE, "multi_modal_data": {"image": random_image(40, 30, 2)}}
    first, text, second = llava.beam_search([WITH_IMAGE, "Hello", other], params)
    check(found(first), expected(model, dict(inputs), width=4, count=8, eos=eos, length_penalty=0.5))
    tokens = torch.tensor([text.prompt_token_ids])
    plain = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    check(found(text), expected(model, plain, width=4, count=8, eos=eos, length_penalty=0.5))
    assert found(first) != found(second)


def test_outputs(llava: LLM) -> None:
    """A single beam is the greedy output, with its text and log-probabilities; a conversation is one prompt."""
    (output,) = llava.beam_search(WITH_IMAGE, {"beam_width": 1, "max_tokens": 6, "ignore_eos": True, "logprobs": 5})
    sampling = llava.get_default_sampling_params()
    sampling.temperature, sampling.max_tokens, sampling.ignore_eos, sampling.logprobs = 0, 6, True, 5
    (greedy,) = llava.generate(WITH_IMAGE, sampling)
    (one,), (want,) = output.outputs, greedy.outputs
    assert (one.text, one.token_ids, one.logprobs) == (want.text, want.token_ids, want.logprobs)
    assert one.cumulative_logprob == pytest.approx(want.cumulative_logprob)
    assert output.prompt_token_ids == greedy.prompt_token_ids
    talk = [{"role": "user", "content": "How many?"}]
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    (of_talk,) = llava.beam_search(talk, params)
    assert of_talk.prompt_token_ids == llava.chat(talk, sampling)[0].prompt_token_ids
    assert [found(of_talk)] == [found(one) for one in llava.beam_search([talk], params)]


def test_other_engines(llava: LLM, tiny_llava: Path) -> None:
    """`AsyncLLM`, and one with its engine in another process, find the same."""
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    (want,) = llava.beam_search(WITH_IMAGE, params)

    async def run(engine: type[AsyncLLM]) -> RequestOutput:
        async with engine(str(tiny_llava), **OPTIONS | {"max_model_len": 120}) as llm:
            return await llm.beam_search(WITH_IMAGE, params)

    for engine in (AsyncLLM, ProcessLLM):
        output = asyncio.run(run(engine))
        assert (found(output), [one.text for one in output.outputs]) == (found(want), [o.text for o in want.outputs])


def test_temperature(llama: LLM, tiny_llama: Path) -> None:
    """The log-probabilities are those of the logits divided by it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    fields: dict[str, Any] = {"beam_width": 2, "max_tokens": 4, "ignore_eos": True}
    (output,) = llama.beam_search([[5, 9, 13]], {**fields, "temperature": 3})
    for one in output.outputs:
        tokens = torch.tensor([[5, 9, 13, *one.token_ids]])
        with torch.no_grad():
            logprobs = (model(tokens).logits[0, 2:-1] / 3).log_softmax(dim=-1)
        total = logprobs.gather(1, torch.tensor(one.token_ids)[:, None]).sum().item()
        assert one.cumulative_logprob == pytest.approx(total, abs=1e-4)
    (plain,) = llama.beam_search([[5, 9, 13]], {**fields, "temperature": 1})
    assert plain.outputs[0].cumulative_logprob != pytest.approx(output.outputs[0].cumulative_logprob, abs=1e-2)


@pytest.mark.parametrize(("width", "num_ends", "is_whole"), [(60, 0, False), (16, 8, False), (101, 0, True)])
def test_many_beams(
    llama: LLM, tiny_llama: Path, width: int, num_ends: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more candidates than log-probabilities can be asked for; the whole vocabulary is read only if they all may
    count.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": torch.tensor([[5, 9, 13]])}
    best = expected(model, inputs, width=width, count=1, eos=[])
    eos = [tokens[0] for tokens, _ in best[:num_ends]]
    asked: list[SamplingParams] = []
    monkeypatch.setattr(llama.engine, "eos_token_ids", frozenset(eos))
    run = llama.run_prepared

    def noted(prompts: Any, steps: list[SamplingParams], **how: Any) -> Any:
        asked.extend(steps)
        return run(prompts, steps, **how)

    monkeypatch.setattr(llama, "run_prepared", noted)
    (output,) = llama.beam_search([[5, 9, 13]], {"beam_width": width, "max_tokens": 3, "length_penalty": 0.0})
    want = expected(model, inputs, width=width, count=3, eos=eos, length_penalty=0.0)
    check(found(output), want)
    assert {step.logprobs for step in asked} == {-1 if is_whole else 100}
    assert any(tokens[-1] in eos for tokens, _ in want) is bool(num_ends)


def test_the_end_of_the_model(llama: LLM) -> None:
    """Outputs end where the model takes no more; a prompt that leaves no room is refused, others are finished."""
    params = BeamSearchParams(beam_width=2, max_tokens=1000, ignore_eos=True)
    (output,) = llama.beam_search([[5] * 60], params)
    assert [len(one.token_ids) for one in output.outputs] == [4, 4]
    good, bad = llama.beam_search([[5] * 60, [5] * 64], params, on_error="return")
    assert found(good) == found(output)
    assert bad.error is not None
    with pytest.raises(PromptError):
        llama.beam_search([[5], {"promt": "x"}], params)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"beam_width": 0}, "beam_width"), ({"max_tokens": 4}, "beam_width"), ({"beam_width": 2, "n": 3}, "n"),
        ({"num_beams": 2}, "num_beams"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"beam_width": 2, "length_penalty": 10**5000}, "length_penalty"), ({"beam_width": 10**5000}, "beam_width"),
        ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"beam_width": 2, "temperature": -1}, "temperature"), ({"beam_width": 2, "ignore_eos": 1}, "ignore_eos"),
        (None, "params"),
    ],
)  # fmt: skip
def test_wrong_parameters(llama: LLM, wrong: Any, param: str) -> None:
    """Are named, with what would be right."""
    with pytest.raises(InvalidParameterError) as caught:
        llama.beam_search("a", wrong)
    assert caught.value.param == param


def test_impossible_tokens_are_never_followed() -> None:
    """A token of probability zero makes no beam, also where there are fewer others than beams."""
    beams = Beams(BeamSearchParams(beam_width=3), frozenset(), 2)
    beams.take([{4: Logprob(0.0), 5: Logprob(float("-inf")), 6: Logprob(float("-inf"))}])
    assert [beam.token_ids for beam in beams.running] == [(4,)]
