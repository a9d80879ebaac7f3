"""The form of `structured_outputs`: data that is checked, becomes the constraint, and goes to other processes."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from corellm import ReasoningParams, SamplingParams, StructuredOutputsParams
from corellm.errors import InvalidParameterError
from corellm.sampling.extensions import NO_EXTENSIONS
from corellm.sampling_params import ConstraintParams


class Shape(BaseModel):
    name: str
    sides: int


def definition(params: SamplingParams) -> Any:
    assert params.structured_outputs is None
    assert params.constraint is not None
    assert params.constraint.kind == "structured"
    return json.loads(params.constraint.definition)


def test_a_form_becomes_the_constraint() -> None:
    """As dict, text and model; properties keep their order, in which the output has them."""
    schema = Shape.model_json_schema()
    for given in (schema, json.dumps(schema), Shape):
        params = SamplingParams(structured_outputs=StructuredOutputsParams(json=given, disable_any_whitespace=True))
        assert definition(params) == {"json": schema, "disable_any_whitespace": True}
        assert list(definition(params)["json"]["properties"]) == ["name", "sides"]
    tag = {"structures": [], "triggers": []}
    for form, given, stated in [
        ("regex", "[a-c]é", "[a-c]é"), ("choice", ("a", "b", "a"), ["a", "b"]), ("grammar", "start: A", "start: A"),
        ("json_object", True, True), ("structural_tag", tag, tag), ("structural_tag", json.dumps(tag), tag),
    ]:  # fmt: skip
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**{form: given}))
        assert definition(params) == {form: stated}


def test_reasoning_before_a_form() -> None:
    """As an object and as its fields; a bound needs no form; what comes behind a form's own reasoning keeps it."""
    stated = {"start": "<think>", "end": "</think>", "is_begun": True, "max_tokens": 3}
    for given in (ReasoningParams(is_begun=True, max_tokens=3), {"is_begun": True, "max_tokens": 3}):
        form = StructuredOutputsParams(regex="a", reasoning=given)
        assert json.loads(form.definition()) == {"regex": "a", "reasoning": stated}
        assert json.loads(StructuredOutputsParams(reasoning=given).definition()) == {"reasoning": stated}
        assert json.loads(ReasoningParams().before(form.definition())) == json.loads(form.definition())
    assert json.loads(ReasoningParams(is_begun=True, max_tokens=3).before('{"regex":"a"}')) == {
        "regex": "a", "reasoning": stated,
    }  # fmt: skip


def test_copies_keep_it_and_the_last_one_holds() -> None:
    first = SamplingParams(n=2, structured_outputs=StructuredOutputsParams(regex="a"))
    for copied in (
        replace(first, seed=1), first.clone(), first.child(1), pickle.loads(pickle.dumps(first)),
        msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=SamplingParams),
    ):  # fmt: skip
        assert definition(copied) == {"regex": "a"}
    other = StructuredOutputsParams(choice=["b"])
    assert definition(replace(first, structured_outputs=other)) == {"choice": ["b"]}
    first.structured_outputs = other
    assert definition(first.clone()) == {"choice": ["b"]}
    assert pickle.loads(pickle.dumps(other)) == other


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "", "takes one of json, regex, choice, grammar, json_object, structural_tag; got none"),
        ({"json_object": False}, "", "got none"),
        ({"regex": "a", "choice": ["a"]}, "", "got regex and choice"),
        ({"json": 3}, ".json", "must be a JSON object, as a dict or its text; got 3"),
        ({"json": "{"}, ".json", "is no JSON"),
        ({"json": {"const": float("nan")}}, ".json", "cannot be written as JSON"),
        ({"json": {"const": object()}}, ".json", "cannot be written as JSON"),
        ({"regex": ""}, ".regex", "must be a string that is not empty, got ''"),
        ({"regex": 1}, ".regex", "must be a string"),
        ({"choice": []}, ".choice", "must be a list of strings"),
        ({"choice": "ab"}, ".choice", "must be a list of strings"),
        ({"choice": ["a", 1]}, ".choice", "must be a list of strings"),
        ({"grammar": b"start"}, ".grammar", "must be a string"),
        ({"json_object": 1}, ".json_object", "must be True, got 1"),
        ({"structural_tag": []}, ".structural_tag", "must be a JSON object"),
        ({"reasoning": ReasoningParams()}, "", "got none"),
        ({"regex": "a", "reasoning": 5}, ".reasoning", "must be a ReasoningParams or its fields, got 5"),
        ({"regex": "a", "reasoning": {"end": " "}}, ".reasoning.end", "must be 1 to 100 characters"),
        ({"regex": "a", "reasoning": {"end": "\ud800x"}}, ".reasoning.end", "must be text of whole characters"),
        ({"regex": "a", "reasoning": {"is_begun": 1}}, ".reasoning.is_begun", "must be True or False"),
        ({"regex": "a", "reasoning": {"max_tokens": -1}}, ".reasoning.max_tokens", "at least 0, or None; got -1"),
        ({"regex": "a", "reasoning": {"max_tokens": True}}, ".reasoning.max_tokens", "must be an integer"),
        ({"regex": "a", "whitespace_pattern": " "}, ".whitespace_pattern", "is for json and json_object"),
        ({"json_object": True, "whitespace_pattern": 1}, ".whitespace_pattern", "must be a string"),
        ({"json_object": True, "disable_any_whitespace": 1}, ".disable_any_whitespace", "must be True or False"),
        (
            {"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "}, ".whitespace_pattern",
            "goes without disable_any_whitespace",
        ),
    ],
)  # fmt: skip
def test_wrong_forms(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        StructuredOutputsParams(**fields)
    assert words in str(raised.value)
    assert raised.value.param == "structured_outputs" + param


def test_what_is_no_form() -> None:
    for given in ({"regex": "a"}, "a"):
        with pytest.raises(InvalidParameterError, match="must be a StructuredOutputsParams") as raised:
            SamplingParams(structured_outputs=given)  # type: ignore[arg-type]
        assert raised.value.param == "structured_outputs"
    with pytest.raises(InvalidParameterError, match="has no 'reqex'; did you mean 'regex'"):
        StructuredOutputsParams(reqex="a")  # type: ignore[call-arg]
    other = ConstraintParams("automaton", "")
    with pytest.raises(InvalidParameterError, match="a constraint of the kind 'automaton', too"):
        SamplingParams(constraint=other, structured_outputs=StructuredOutputsParams(regex="a"))


def test_without_the_extension_it_says_what_to_install() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    assert params.constraint is not None
    with pytest.raises(InvalidParameterError, match=r"pip install \./extensions/structured") as raised:
        NO_EXTENSIONS.check(params.constraint)
    assert raised.value.param == "structured_outputs"
