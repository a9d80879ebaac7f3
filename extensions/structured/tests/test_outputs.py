"""Outputs of a model with random weights: of their forms whatever it would say, and the request's own in any batch."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from corellm import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import InvalidParameterError
from corellm.sampling.constraint import num_words
from corellm_structured.constraint import StructuredConstraints
from corellm_testing.together import generate_together
from tests.fixtures import random_image

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "block_size": 8}
TEXT = "Look with care, one two three four five six seven. "
PROMPTS: list[Any] = [
    "yes",
    TEXT + "How many objects are there?",
    {"prompt": "USER: <image>\nWhat is this? ASSISTANT:", "multi_modal_data": {"image": random_image(40, 30, 1)}},
    TEXT * 2 + "left or right?",
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "sides": {"type": "integer", "minimum": 3, "maximum": 12},
        "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
        "inner": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "sides", "inner"],
    "additionalProperties": False,
}
FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"json": SCHEMA, "disable_any_whitespace": True}, {}),
    ({"json": SCHEMA, "whitespace_pattern": " "}, {"n": 2, "logprobs": 2}),
    ({"regex": r"[A-Z][a-z]{2,6}(, [0-9]+)?"}, {"stop": ["x"]}),
    ({"choice": ["circle", "square", *(f"shape {number}" for number in range(9000))]}, {"n": 3}),
    ({"grammar": 'root ::= "(" root ")" | [0-9]'}, {"repetition_penalty": 1.3}),
    ({"regex": "[a-e]+"}, {"min_tokens": 18}),
    ({"json_object": True}, {}),
    (
        {"structural_tag": {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]}},
        {"temperature": 0},
    ),
]
REQUESTS = [
    (
        PROMPTS[number % len(PROMPTS)],
        SamplingParams(
            **{"temperature": 1.0, "seed": number, "max_tokens": 70} | more,
            structured_outputs=StructuredOutputsParams(**form),
        ),
    )
    for number, (form, more) in enumerate(FORMS)
]
FREE = [(prompt, SamplingParams(seed=number, max_tokens=30, logprobs=1)) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def llm(tiny_llava: Path) -> Iterator[LLM]:
    with LLM(str(tiny_llava), **OPTIONS, num_kv_blocks=300) as loaded:
        yield loaded


def generate(llm: LLM, requests: Any) -> Any:
    prompts, params = zip(*requests, strict=True)
    return llm.generate(list(prompts), list(params), use_tqdm=False)


def told(outputs: Any) -> list[Any]:
    return [[(one.token_ids, one.text, one.finish_reason, one.logprobs) for one in o.outputs] for o in outputs]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Any]:
    """What each request gives alone."""
    return [told(generate(llm, [request]))[0] for request in REQUESTS]


def is_of_form(form: dict[str, Any], text: str) -> bool:
    if "json" in form:
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    if "json_object" in form:
        return isinstance(json.loads(text), dict)
    if "structural_tag" in form:
        return all(re.match("<f>{", text[found.start() :]) for found in re.finditer("<f", text))
    grammar = r"(\()*[0-9](\))*"
    pattern = form.get("regex") or (grammar if "grammar" in form else "|".join(form["choice"]))
    return re.fullmatch(pattern, text) is not None and text.count("(") == text.count(")")


def test_outputs_are_of_their_forms(llm: LLM, alone: list[Any]) -> None:
    """Those that end by themselves are whole; those that are cut, by length or a stop string, can still become so."""
    constraints = StructuredConstraints(llm.engine.context.tokenizer, llm.engine.input_processor.vocab_size)
    (eos,) = llm.engine.eos_token_ids
    num_whole = 0
    for (form, _), (_, params), outputs in zip(FORMS, REQUESTS, alone, strict=True):
        assert params.constraint is not None
        for token_ids, text, finish_reason, _ in outputs:
            if finish_reason == "stop" and token_ids[-1] == eos:
                assert is_of_form(form, text), text
                num_whole += 1
            constraint = constraints(params.constraint.definition, frozenset({eos}))
            for token in token_ids:
                mask = np.zeros(num_words(constraints.vocabulary.size), dtype=np.int32)
                constraint.fill(mask)
                assert mask[token // 32] >> token % 32 & 1
                if token != eos:
                    constraint.accept(token)
            assert len(token_ids) >= params.min_tokens
    assert num_whole >= 8


def test_results_do_not_depend_on_the_batch_and_neighbours_are_untouched(llm: LLM, alone: list[Any]) -> None:
    """All in one batch with requests that have no form: tokens, texts and log-probabilities, bit for bit."""
    free = told(generate(llm, FREE))
    assert told(generate(llm, [*REQUESTS, *FREE])) == [*alone, *free]


def test_results_do_not_depend_on_chunks_and_preemptions(tiny_llava: Path, alone: list[Any]) -> None:
    with LLM(str(tiny_llava), **OPTIONS, num_kv_blocks=26, max_num_batched_tokens=16, max_num_seqs=12) as llm:
        assert told(generate_together(llm, *zip(*REQUESTS, strict=True))) == alone
        assert llm.engine.scheduler.get_stats().num_preemptions > 2


def test_a_finished_form_without_a_token_to_end_it_fails(llm: LLM) -> None:
    form = StructuredOutputsParams(choice=["a"])
    params = SamplingParams(ignore_eos=True, structured_outputs=form)
    with pytest.raises(InvalidParameterError, match="constraint leave no token"):
        llm.generate("yes", params, use_tqdm=False)
    with_stop = SamplingParams(ignore_eos=True, stop_token_ids=[5], structured_outputs=form)
    assert llm.generate("yes", with_stop, use_tqdm=False)[0].outputs[0].text == "a"


def test_other_engines(tiny_llava: Path, alone: list[Any]) -> None:
    """In a thread and in a process of its own: the same outputs; a wrong form is refused, and others go on."""

    async def outputs_of(llm: AsyncLLM) -> list[Any]:
        async def final(prompt: Any, params: SamplingParams) -> Any:
            async for output in llm.generate(prompt, params):
                last = output
            return last

        wrong = SamplingParams(structured_outputs=StructuredOutputsParams(json={"not": {}}))
        *got, error = await asyncio.gather(
            *(final(*request) for request in REQUESTS[:4]), final("yes", wrong), return_exceptions=True
        )
        assert isinstance(error, InvalidParameterError)
        assert error.param == "structured_outputs.json"
        return told(got)

    for kind in (AsyncLLM, ProcessLLM):
        engine = kind(str(tiny_llava), **OPTIONS, num_kv_blocks=300)
        try:
            assert asyncio.run(outputs_of(engine)) == alone[:4]
        finally:
            engine.close()
