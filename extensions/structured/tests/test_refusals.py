"""What outputs cannot be held to: refused by name, within time and memory, where a request is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corellm.children.child import Child, ChildError
from corellm.errors import InvalidParameterError
from corellm.structured_outputs import StructuredOutputsParams
from corellm_structured import checking
from corellm_structured.checking import Checker

TAG = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {}}, "end": ""}
TEXT_WITH_TAGS = {"type": "text_with_tags", "tags": [TAG], "trigger": "<a>", "excludes": []}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"json": {"not": {"type": "string"}}}, '"not"'),
    ({"json": {"if": {"const": 1}, "then": {}}}, '"if"'),
    ({"json": {"type": "array", "uniqueItems": True}}, '"uniqueItems"'),
    ({"json": {"type": "object", "propertyNames": {"maxLength": 3}}}, '"propertyNames"'),
    ({"json": {"unevaluatedProperties": False}}, '"unevaluatedProperties"'),
    ({"json": {"properties": {"a": {"type": "string", "nullable": True}}}}, "'nullable'"),
    ({"json": {"allOf": [{"divisibleBy": 2}]}}, "'divisibleBy'"),
    ({"json": {"items": [{}], "additionalItems": False}}, "'additionalItems'"),
    ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "'x-guidance'"),
    ({"json": {"oneOf": [{"type": "string"}, {"const": "a"}]}}, "oneOf"),
    ({"json": {"$ref": "https://example.org/schema"}}, "https://example.org/schema"),
    ({"json": {"$ref": "file:///etc/passwd"}}, "file:///etc/passwd"),
    ({"json": {"type": "string", "format": "nonsense"}}, "nonsense"),
    ({"json": {"type": "strin"}}, "strin"),
    ({"json": {"enum": []}}, "Unsatisfiable"),
    ({"json": {"enum": 5}}, "enum must be an array"),
    ({"json": {"$ref": "#"}}, "no output has this form"),
    ({"json": {"enum": list(range(10_001))}}, "an enum has 10001 values, 10000 are allowed"),
    ({"regex": "(?=a)b"}, "look-ahead"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "[a&&b]"}, "no output has this form"),
    ({"choice": [str(number) for number in range(10_001)]}, "there are 10001 choices, 10000 are allowed"),
    ({"grammar": "start: <|tool|>"}, "unknown special token"),
    ({"grammar": "start: absent"}, 'unknown name: "absent"'),
    ({"grammar": "nonsense"}, "neither Lark's notation nor GBNF"),
    ({"grammar": '%llguidance {}\nstart: "a"'}, "leave out %llguidance"),
    ({"structural_tag": {"structures": [], "triggers": []}}, "must be lists that are not empty"),
    ({"structural_tag": {"other": {}}}, "unknown key 'other'"),
    ({"structural_tag": {"format": {}}}, "a format is like"),
    ({"structural_tag": {"format": {"type": ["or"], "elements": []}}}, "a format is like"),
    ({"structural_tag": {"format": {"type": "or", "elements": []}}}, "elements must be a list"),
    ({"structural_tag": {"format": {"type": "or", "elements": [3]}}}, "a format is like"),
    ({"structural_tag": {"format": {"type": "any_text", "excludes": [], "not_begun": [""]}}}, "not_begun must be"),
    ({"structural_tag": {"format": {"type": "json_schema", "json_schema": {"not": {}}}}}, "not"),
    ({"structural_tag": {"format": {**TEXT_WITH_TAGS, "trigger": ""}}}, "trigger must be a string"),
    ({"structural_tag": {"format": {**TEXT_WITH_TAGS, "trigger": "<b>"}}}, "'<b>' is not the start of '<a>'"),
    ({"structural_tag": {"format": {**TEXT_WITH_TAGS, "tokens": 3}}}, "tokens must be a list of strings"),
    ({"structural_tag": {"format": {**TEXT_WITH_TAGS, "tags": []}}}, "tags must be a list"),
    (
        {"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": "x"}], "triggers": ["<b"]}},
        "no trigger is the start of '<a>'",
    ),
    (
        {"structural_tag": {"structures": [{"begin": "<a>", "schema": {"not": {}}, "end": "x"}], "triggers": ["<a"]}},
        '"not"',
    ),
]


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "integer"}]}
    return schema


EXPLOSIVE: list[dict[str, Any]] = [
    {"grammar": 'start: s\ns: s s | s s s | "a" |'},
    {"json": {"type": "integer", "multipleOf": 999_983}},
    {"grammar": "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "x"'},
    {"json": {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(4)]} for i in range(8)]}},
    {"json": _deep(33)},
    {"json": {"const": "x" * (1 << 18)}},
]
COSTLY: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 50} for i in range(1000)}}},
    {"regex": "((a{1,1000}){1,1000}){1,1000}"},
]
"""Those that compile, and take too much to follow."""
HARMLESS: list[dict[str, Any]] = [
    {"grammar": 'start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9]+/'},
    {"regex": "(x+x+)+y"},
    {"json": {"type": "string", "maxLength": 10**9}},
    {"json": {"type": "array", "minItems": 10**9, "items": {"type": "string"}}},
    {"json": _deep(30)},
    {"json": {"$defs": {"n": {"properties": {"c": {"items": {"$ref": "#/$defs/n"}}}}}, "$ref": "#/$defs/n"}},
    {"json": {"enum": [f"value {number}" for number in range(10_000)]}},
    {"choice": [f"choice {number}" for number in range(10_000)]},
    {"grammar": 'root ::= "a" root | "b"'},
]
"""Those that look explosive, and compile in no time."""


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


def refusal(checker: Checker, form: dict[str, Any]) -> InvalidParameterError:
    with pytest.raises(InvalidParameterError) as raised:
        checker.check(StructuredOutputsParams(**form).definition())
    return raised.value


@pytest.mark.parametrize(("form", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_forms(checker: Checker, form: dict[str, Any], words: str) -> None:
    error = refusal(checker, form)
    assert words in str(error)
    assert error.param == f"structured_outputs.{next(iter(form))}"
    assert len(str(error)) < 1000


@pytest.mark.parametrize("form", EXPLOSIVE, ids=lambda form: str(form)[:40])
def test_explosive_forms(checker: Checker, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused within the limits of a process that can be killed; others go on."""
    monkeypatch.setattr(checking, "_SECONDS", 2.0)
    assert str(refusal(checker, form).param).startswith("structured_outputs")
    monkeypatch.undo()
    checker.check(StructuredOutputsParams(regex="a").definition())


def test_what_was_found_out_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forms that are taken and of those that are refused, without a process; not that time was up."""
    checker, taken, wrong = Checker(), StructuredOutputsParams(regex="ab").definition(), {"json": {"not": {}}}
    checker.check(taken)
    told = str(refusal(checker, wrong))
    monkeypatch.setattr(checking, "_SECONDS", 0.0)
    assert "it takes too long" in str(refusal(checker, {"regex": "abc"}))
    monkeypatch.undo()
    checker.check(StructuredOutputsParams(regex="abc").definition())
    monkeypatch.setattr(checking.ChildPool, "lend", None)
    checker.check(taken)
    assert str(refusal(checker, wrong)) == told


def test_a_process_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was asked for is not refused for ever: it may not be the form's fault."""
    checker, taken = Checker(), StructuredOutputsParams(regex="abcd").definition()

    def killed(*_: Any) -> None:
        raise ChildError("ended with status -9")

    monkeypatch.setattr(Child, "call", killed)
    with pytest.raises(InvalidParameterError, match="it takes too long or too much memory"):
        checker.check(taken)
    monkeypatch.undo()
    checker.check(taken)


@pytest.mark.parametrize("form", COSTLY, ids=lambda form: str(form)[:40])
def test_forms_that_cannot_be_followed(checker: Checker, form: dict[str, Any]) -> None:
    assert "following an output takes too much" in str(refusal(checker, form))


@pytest.mark.parametrize("form", HARMLESS, ids=lambda form: str(form)[:40])
def test_harmless_forms(checker: Checker, form: dict[str, Any]) -> None:
    checker.check(StructuredOutputsParams(**form).definition())


def test_definitions_that_no_form_makes(checker: Checker) -> None:
    """Of a `ConstraintParams` that somebody wrote."""
    for definition in (
        "",
        "{}",
        "[]",
        "3",
        "{",
        "[" * 100_000,
        "\ud800",
        json.dumps({"json": 3}),
        '{"json":{}, "x": 1}',
    ):
        with pytest.raises(InvalidParameterError) as raised:
            checker.check(definition)
        assert str(raised.value.param).startswith("structured_outputs")
