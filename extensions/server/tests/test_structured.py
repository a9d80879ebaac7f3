"""Outputs of a given form over HTTP: every field that asks for one, and errors that name it."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from corellm.system.process import usable_cpus
from extensions.server.tests.conftest import Running, chat, image_part, user
from extensions.server.tests.test_promises import CHAT, error_of

RESPONSES, COMPLETIONS = "/v1/responses", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"shape": {"enum": ["circle", "star"]}, "sides": {"type": "integer", "minimum": 3, "maximum": 99}},
    "required": ["shape", "sides"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "shape", "schema": SCHEMA, "strict": True}}
EXTRA: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
    ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ({"guided_grammar": 'root ::= "x" | "yz"'}, "x|yz"),
    ({"structured_outputs": {"regex": "[cd]{2}", "json": None}}, "[cd]{2}"),
]


def text_of(running: Running, path: str, fields: dict[str, Any]) -> str:
    """The output at one of the endpoints; it ended by itself."""
    base: dict[str, Any] = {"model": "tiny", "temperature": 1.0, "seed": 3}
    if path == CHAT:
        body = {**base, "messages": user("a shape"), "max_tokens": 60}
    elif path == COMPLETIONS:
        body = {**base, "prompt": "a shape", "max_tokens": 60}
    else:
        body = {**base, "input": "a shape", "max_output_tokens": 60}
    got = running.post(path, body | fields)
    assert got.status_code == 200, got.text
    if path == RESPONSES:
        assert got.json()["status"] == "completed"
        assert got.json()["text"]["format"] == fields.get("text", {}).get("format", {"type": "text"})
        return str(got.json()["output"][0]["content"][0]["text"])
    (choice,) = got.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_every_field_that_asks_for_a_form(running: Running, path: str) -> None:
    compact = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
    text = text_of(running, path, compact)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert " " not in text
    for fields, pattern in EXTRA:
        assert re.fullmatch(pattern, text_of(running, path, fields)), fields
    for value in ({"type": "text"}, None):
        named = {"text": {"format": value}} if path == RESPONSES else {"response_format": value}
        assert running.post(path, {**_body(path), **named}).status_code == 200


def _body(path: str) -> dict[str, Any]:
    if path == CHAT:
        return {**chat(user("x")), "max_tokens": 2}
    return {"model": "tiny", **({"input": "x"} if path == RESPONSES else {"prompt": "x", "max_tokens": 2})}


def _formatted(path: str, value: Any) -> tuple[dict[str, Any], str]:
    """A format as the endpoint takes it, and what errors of its schema name."""
    if path != RESPONSES:
        return {"response_format": value}, "response_format"
    if "json_schema" in value:
        value = {"type": value["type"], **value["json_schema"]}
    return {"text": {"format": value}}, "text.format"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_formats(running: Running, path: str) -> None:
    """OpenAI's own: output of a schema is of it, also where space is left to the model and the output is long."""
    fields, _ = _formatted(path, FORMAT)
    length = {"max_output_tokens": 900} if path == RESPONSES else {"max_tokens": 900}
    no_space = {"logit_bias": dict.fromkeys(_spaces(running), -100)}
    jsonschema.validate(json.loads(text_of(running, path, {**fields, **length, **no_space})), SCHEMA)
    seven = {"type": "json_schema", "json_schema": {"const": 7}}
    tag = {"type": "tag", "begin": "<a>", "content": seven, "end": "</a>"}
    alone = {"type": "tags_with_separator", "tags": [tag], "separator": "", "at_least_one": True}
    tags = {"type": "structural_tag", "format": {**alone, "stop_after_first": True}}
    fields, _ = _formatted(path, tags)
    assert text_of(running, path, fields) == "<a>7</a>"
    fields, _ = _formatted(path, {"type": "json_object"})
    got = running.post(path, {**_body(path), **fields})
    assert got.status_code == 200


def _spaces(running: Running) -> list[str]:
    tokenizer = running.service.client.engine.context.tokenizer
    return [str(token) for token in range(len(tokenizer)) if tokenizer.decode([token]).isspace()]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_names_the_field(running: Running, path: str, *, stream: bool) -> None:
    """400 before a stream begins: wrong types, forms that cannot be held to, two at once; others go on."""
    for value, within in (
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, "json_schema.strict"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "y": 1}}, "json_schema.y"),
        ({"type": "xml"}, "type"),
        ({"type": "json_object", "schema": {}}, "schema"),
    ):
        fields, name = _formatted(path, value)
        within = within.removeprefix("json_schema.") if path == RESPONSES else within
        error = error_of(running.post(path, {**_body(path), **fields, "stream": stream}), 400)
        assert error["param"] == f"{name}.{within}", value
        assert error["message"].startswith(("unrecognized", error["param"]))
    for fields, param in (
        ({"guided_regex": "(?=a)b"}, "guided_regex"), ({"guided_json": {"not": {}}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"), ({"guided_json": 3}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"), ({"guided_grammar": "x"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"x": 1}}, "structured_outputs.x"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "structured_outputs"),
        ({"constraint": {"kind": "structured", "definition": "{}"}}, "constraint"),
    ):  # fmt: skip
        error = error_of(running.post(path, {**_body(path), **fields, "stream": stream}), 400)
        assert error["param"] == param, fields
    assert text_of(running, path, {"guided_regex": "ab"}) == "ab"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_while_it_runs_names_the_field(running: Running, path: str, *, stream: bool) -> None:
    """A form that comes to its end with no token to end the output: 400, or an event if a stream has begun."""
    no_end = {**_body(path), "ignore_eos": True, "stream": stream, "max_tokens": 40, "max_output_tokens": 40}
    del no_end["max_tokens" if path == RESPONSES else "max_output_tokens"]
    fields, name = _formatted(path, {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}})
    within = ".schema" if path == RESPONSES else ".json_schema.schema"
    for given, param in (
        (fields, name + within), ({"guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ):  # fmt: skip
        got = running.post(path, no_end | given)
        told = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: {")]
        has_begun = stream and got.status_code == 200
        error = next(event["error"] for event in told if event.get("error")) if has_begun else error_of(got, 400)
        assert error["param"] == param


def test_checks_that_wait_keep_nobody_waiting(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more forms than there are threads wait for their check, images and forms that are known are served."""
    processor, may_end, number = running.service.client.input_processor, threading.Event(), usable_cpus() + 2
    check, began = processor.check_params, threading.Semaphore(0)

    def slow(params: Any) -> None:
        if params.constraint is not None and "slow" in params.constraint.definition:
            began.release()
            assert may_end.wait(600)
        check(params)

    known = {**_body(CHAT), "guided_choice": ["a known one"]}
    assert running.post(CHAT, known).status_code == 200
    monkeypatch.setattr(processor, "check_params", slow)
    with ThreadPoolExecutor(number) as pool:
        bodies = [{**_body(CHAT), "guided_choice": [f"slow {i}"]} for i in range(number)]
        waiting = [pool.submit(running.post, CHAT, body) for body in bodies]
        try:
            assert began.acquire(timeout=600)
            for served in (known, {**_body(CHAT), "messages": user(image_part(1))}):
                assert running.post(CHAT, served, timeout=600).status_code == 200
            assert not any(future.done() for future in waiting)
        finally:
            may_end.set()
        assert {future.result().status_code for future in waiting} == {200}
