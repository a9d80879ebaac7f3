"""Calls that a request demands, of a model of random weights: they come, each of a tool and of its schema."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from corellm import AsyncLLM, StructuredOutputsParams
from corellm_server.parsing.pieces import CallArguments, CallStart, Text
from corellm_server.reasoning.marked import ReasoningParser
from corellm_server.tools import held
from corellm_server.tools.calls import ToolParser
from corellm_server.tools.held import calls_alone, calls_in_text, closed
from corellm_server.tools.objects import DeepSeekCalls, HermesCalls, LlamaCalls, MistralCalls
from corellm_server.tools.pythonic import PythonicCalls
from corellm_structured.grammars import compiled, tokenizer_of
from extensions.server.tests.conftest import MODEL, Running, data_url, serving, user
from tests.templates.published import LLAMA, MISTRAL, QWEN


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool whose arguments are bounded, so that a model of random weights comes to their end."""
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    function("paint", colour={"enum": ["red", "blue"]}, sides={"type": "integer", "minimum": 3, "maximum": 9}),
    function("look", at={"type": "boolean"}),
    function("wait"),
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
SEEDS = range(6)


@pytest.fixture(scope="module")
def running(loaded: AsyncLLM) -> Iterator[Running]:
    with serving(loaded, allow_request_templates=True) as server:
        yield server


def ask(seed: int, **fields: Any) -> dict[str, Any]:
    """A request that demands calls."""
    given = {"messages": user("What now?"), "tools": TOOLS, "tool_choice": "required", "reasoning_effort": "none"}
    given |= fields
    return {"model": MODEL, "temperature": 1.0, "seed": seed, "max_tokens": 400, **given}


def calls_of(choice: Any, reason: str = "tool_calls") -> list[tuple[str, dict[str, Any]]]:
    """A choice's calls, of their schemas; it has nothing else."""
    assert (choice.finish_reason, choice.message.content) == (reason, None)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    return calls


def test_a_call_is_demanded(running: Running) -> None:
    """Different ones for different seeds; one alone if no others may come, or if it is named, which is no reason."""
    create = running.client().chat.completions.create
    one = [calls_of(create(**ask(seed, parallel_tool_calls=False)).choices[0]) for seed in SEEDS]
    assert {len(calls) for calls in one} == {1}
    assert len({json.dumps(calls) for calls in one}) > 1
    named = {"type": "function", "function": {"name": "look"}}
    for seed in SEEDS[:3]:
        ((name, _),) = calls_of(create(**ask(seed, tool_choice=named)).choices[0], "stop")
        assert name == "look"
    last = [*create(**ask(1, tool_choice=named), stream=True)][-1]
    assert last.choices[0].finish_reason == "stop"


def test_streamed_and_in_responses(running: Running) -> None:
    """The same call as whole."""
    client = running.client()
    request = ask(1, parallel_tool_calls=False)
    ((name, arguments),) = calls_of(client.chat.completions.create(**request).choices[0])
    told = [chunk.choices[0].delta for chunk in client.chat.completions.create(**request, stream=True)]
    functions = [call.function for delta in told for call in delta.tool_calls or ()]
    assert functions[0].name == name
    assert json.loads("".join(one.arguments for one in functions)) == arguments
    assert not any(delta.content for delta in told)
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for choice, names in (("required", SCHEMAS), ({"type": "function", "name": "wait"}, {"wait"})):
        response = client.responses.create(
            model=MODEL, input="What now?", temperature=1.0, tools=flat, tool_choice=choice, parallel_tool_calls=False,
            max_output_tokens=400, extra_body={"seed": 1},
        )  # fmt: skip
        (item,) = response.output
        assert (item.type, item.name in names) == ("function_call", True)
        jsonschema.validate(json.loads(item.arguments), SCHEMAS[item.name])


def test_a_model_that_knows_no_tools(running: Running) -> None:
    """A call that is demanded comes also where neither template nor form of calls is known."""
    plain = {"chat_template": "{{ messages[0].content }}"}
    (call,) = calls_of(
        running.client().chat.completions.create(**ask(2, parallel_tool_calls=False), extra_body=plain).choices[0]
    )
    assert call[0] in SCHEMAS


def test_a_loop_of_three_calls(running: Running) -> None:
    """Each turn demands one, and gets its result back; one result has an image."""
    create, messages = running.client().chat.completions.create, user("Paint.")
    for number in range(3):
        message = create(**ask(number, messages=messages, parallel_tool_calls=False)).choices[0].message
        result: Any = "done"
        if number == 1:
            result = [{"type": "image_url", "image_url": {"url": data_url(3)}}, {"type": "text", "text": "See."}]
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}]
    assert create(**ask(9, messages=messages, tool_choice="none", max_tokens=4)).choices[0].message.tool_calls is None


THINKS = "{{ messages[0].content }}{{ tools }}<think>\n{# </think><tool_call> #}"
"""A template that opens the reasoning."""
SHAPE = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["circle", "star"]}}}


@pytest.mark.parametrize(
    ("path", "is_hidden"),
    [  # responses always report it
        ("/v1/chat/completions", False), ("/v1/chat/completions", True), ("/v1/responses", False),
        ("/v1/messages", False), ("/v1/messages", True),
    ],
)  # fmt: skip
def test_reasoning_comes_before_what_is_held_to(running: Running, path: str, is_hidden: bool) -> None:
    """Calls and a form, behind reasoning of some tokens, reported or not; and free text behind a bound."""
    for number, budget in enumerate((0, 6, 12)):
        bound: dict[str, Any] = {"thinking_token_budget": budget, "include_reasoning": not is_hidden}
        begin: Any = {"messages": user("What now?"), "max_tokens": 200}
        shape: dict[str, Any] = {"response_format": SHAPE}
        tools: Any = {"tools": TOOLS, "tool_choice": "required"}
        if path == "/v1/responses":
            flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
            bound, begin = {"thinking_token_budget": budget}, {"input": "What now?", "max_output_tokens": 200}
            shape, tools = (
                {"text": {"format": {"type": "json_schema", **SHAPE["json_schema"]}}},
                {**tools, "tools": flat},
            )
        if path == "/v1/messages":
            bound = {"thinking": {"type": "enabled", "budget_tokens": budget}}
            bound["thinking"] |= {"display": "omitted"} if is_hidden else {}
            shape = {"output_config": {"format": {"type": "json_schema", "schema": SHAPE["json_schema"]["schema"]}}}
            named = [{"name": f["name"], "input_schema": f["parameters"]} for f in (tool["function"] for tool in TOOLS)]
            tools = {"tools": named, "tool_choice": {"type": "any"}}
        base = {"model": MODEL, "temperature": 1.0, "seed": number, "chat_template": THINKS, **begin, **bound}
        for fields in (shape, tools, {}):
            got = running.post(path, base | fields)
            assert got.status_code == 200, got.text
            thought, text, calls = parts_of(path, got.json())
            assert (thought != "") == (budget > 0 and not is_hidden)
            assert not fields or (text in ('"circle"', '"star"')) == (fields is shape)
            for name, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[name])
            assert bool(calls) == (fields is tools)


def parts_of(path: str, reply: Any) -> tuple[str, str, list[tuple[str, Any]]]:
    """What a reply thought, its text, its calls."""
    if path == "/v1/chat/completions":
        message = reply["choices"][0]["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        return message.get("reasoning") or "", message["content"] or "", calls
    if path == "/v1/responses":
        texts = {item["type"]: item["content"][0]["text"] for item in reply["output"] if item.get("content")}
        calls = [(i["name"], json.loads(i["arguments"])) for i in reply["output"] if i["type"] == "function_call"]
        return texts.get("reasoning", ""), texts.get("message", ""), calls
    blocks = {block["type"]: block for block in reply["content"]}
    calls = [(block["name"], block["input"]) for block in reply["content"] if block["type"] == "tool_use"]
    return blocks.get("thinking", {}).get("thinking", ""), blocks.get("text", {}).get("text", ""), calls


def test_a_model_that_may_think(running: Running) -> None:
    """It opens its reasoning itself, or begins with the form at once; not where the client wants no reasoning."""
    create, seen = running.client().chat.completions.create, set()
    for seed, pattern in enumerate(["[a-z<>]{2}", "<[bu]>"] * 3):
        asked = {"model": MODEL, "messages": user("x"), "temperature": 1.0, "seed": seed, "max_tokens": 80}
        form = {"guided_regex": pattern, "thinking_token_budget": 3}
        message = create(**asked, extra_body=form).choices[0].message.to_dict()
        assert re.fullmatch(pattern, message["content"])
        seen.add("reasoning" in message)
        without = create(**asked, reasoning_effort="none", extra_body=form).choices[0].message.to_dict()
        assert "reasoning" not in without
    assert seen == {True, False}


@pytest.mark.parametrize("budget", [-2, "5"])
def test_a_wrong_bound(running: Running, budget: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        running.client().chat.completions.create(
            model=MODEL, messages=user("x"), extra_body={"thinking_token_budget": budget}
        )
    assert caught.value.param == "thinking_token_budget"


STRICT = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]
TEMPLATES = {
    "hermes": QWEN, "llama3_json": LLAMA, "mistral": MISTRAL, "pythonic": "{{ tools }}<|python_start|>x",
    "qwen3_coder": "{{ tools }}<tool_call><function=<parameter=x", "glm": "{{ tools }}<tool_call><arg_key>x",
    "deepseek": "{{ tools }}<｜tool▁call▁begin｜>x",
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_strict_calls_among_text(running: Running, name: str) -> None:
    """With `auto` the model may write text, in all forms of families."""
    template = {"chat_template": TEMPLATES[name]}
    fields = {"tools": STRICT, "tool_choice": "auto", "max_tokens": 20}
    message = running.client().chat.completions.create(**ask(1, **fields), extra_body=template).choices[0].message
    assert (bool(message.content), message.tool_calls) == (True, None)


def test_strict_calls_behind_reasoning(running: Running) -> None:
    """Calls without a marker, or text, behind what a model thinks."""
    asked = {"chat_template": "{{ tools }}<|python_start|><think>{# </think> #}", "thinking_token_budget": 4}
    fields = {"tools": STRICT, "tool_choice": "auto", "max_tokens": 30}
    message = running.client().chat.completions.create(**ask(1, **fields), extra_body=asked).choices[0].message
    assert message.to_dict()["reasoning"]
    assert message.content or message.tool_calls
    assert not (message.content or "").lstrip().startswith("[")


def test_markers_that_are_special_tokens(loaded: AsyncLLM) -> None:
    """Also then the model may think and call, and its calls are of their schemas."""
    tokenizer = loaded.input_processor.tokenizer
    pad, think = str(tokenizer.pad_token), str(tokenizer.unk_token or tokenizer.bos_token)
    assert pad != think != tokenizer.eos_token

    class Calls(MistralCalls):
        """The form, with a marker that is a token."""

        MARKERS = (pad,)
        WRITTEN = (pad + MistralCalls.WRITTEN[0].removeprefix("[TOOL_CALLS]"), *MistralCalls.WRITTEN[1:])

    class Thoughts(ReasoningParser):
        """Thoughts between tokens."""

        OPEN, CLOSE = think, f"{think}{think}"
        MARKERS = (think,)

    with serving(loaded) as server:
        forms = server.service.forms
        forms._tool_parsers._is_fixed = forms._reasoning_parsers._is_fixed = True
        forms._tool_parsers._fixed, forms._reasoning_parsers._fixed = Calls, Thoughts
        create = server.client().chat.completions.create
        bias = {str(tokenizer.convert_tokens_to_ids(pad)): 100}
        for choice, reason in (("auto", "length"), ("required", "tool_calls")):
            fields = {"tools": STRICT, "tool_choice": choice, "logit_bias": bias, "parallel_tool_calls": False}
            got = create(**ask(1, **{**fields, "max_tokens": 120})).choices[0]
            assert (got.finish_reason, got.message.content) == (reason, None)
            (call,) = got.message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["paint"])
        bias = {str(tokenizer.convert_tokens_to_ids(think)): 100}
        params = {"tools": STRICT, "tool_choice": "auto", "logit_bias": bias, "max_tokens": 3}
        ids = create(**ask(1, **params), extra_body={"return_token_ids": True}).choices[0].token_ids
        assert ids == [tokenizer.convert_tokens_to_ids(think)] * 3


@pytest.mark.parametrize(
    ("fields", "told", "param"),
    [
        ({"tools": [function("f", a={"type": "array", "uniqueItems": True})]}, "uniqueItems",
         "tools[0].function.parameters"),
        ({"extra_body": {"ignore_eos": True}, "parallel_tool_calls": False}, "leave no token", "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to(running: Running, fields: dict[str, Any], told: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError, match=told) as caught:
        running.client().chat.completions.create(**ask(1, **fields))
    assert caught.value.param == param
    assert "structural_tag" not in str(caught.value)


def test_which_part_of_calls_cannot_be_held_to(running: Running) -> None:
    """The client's own form, or the schema of a tool that may be called, where each interface has it."""
    bad = {"type": "object", "properties": {"a": {"not": {}}}}
    tools = [{"name": name, "parameters": {} if name == "fine" else bad} for name in ("other", "fine", "wrong")]
    chat = {"model": MODEL, "messages": user("x"), "max_tokens": 4}
    named = {"type": "function", "function": {"name": "wrong"}}
    functions = [{"type": "function", "function": tool} for tool in tools]
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": bad}}
    own = {"response_format": form, "tools": functions[1:2]}
    in_messages = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
    for path, body, param in (
        ("/v1/chat/completions", {**chat, "tools": functions, "tool_choice": named}, "tools[2].function.parameters"),
        ("/v1/chat/completions", {**chat, **own, "tool_choice": "auto"}, "response_format.json_schema.schema"),
        ("/v1/responses", {"model": MODEL, "input": "x", "tool_choice": "required", "tools": [
            {"type": "function", **tool} for tool in tools[1:]]}, "tools[1].parameters"),
        ("/v1/messages", {**chat, "tools": in_messages, "tool_choice": {"type": "any"}}, "tools[0].input_schema"),
    ):  # fmt: skip
        reply = running.post(path, body)
        assert reply.status_code == 400, reply.text
        message = reply.json()["error"]["message"]
        assert message.startswith(f"{param}: "), message
        assert "not" in message


NUMBER = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize("strict", [False, True])
def test_calls_or_the_form_of_the_client(running: Running, *, strict: bool) -> None:
    """Beside a form of the output, of all three APIs, the output is a call or has the form; a demand is a demand."""
    tools = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in TOOLS]
    client, schema = running.client(), {"name": "number", "schema": NUMBER}
    chat = {"tools": tools, "response_format": {"type": "json_schema", "json_schema": schema}}
    calls_of(client.chat.completions.create(**ask(1, **chat, parallel_tool_calls=False)).choices[0])
    said = []
    for seed in range(8):
        bias = {str(loaded_id(running, "{" if seed % 2 else "<")): 100}
        fields = {**chat, "tool_choice": "auto", "logit_bias": bias, "parallel_tool_calls": False}
        choice = client.chat.completions.create(**ask(seed, **fields)).choices[0]
        said.append(bool(choice.message.tool_calls))
        if choice.message.tool_calls:
            calls_of(choice)
        else:
            jsonschema.validate(json.loads(choice.message.content), NUMBER)
    assert {*said} == {False, True}


def loaded_id(running: Running, text: str) -> int:
    """The token of a text."""
    return int(running.service.client.input_processor.tokenizer(text, add_special_tokens=False)["input_ids"][-1])


def test_a_form_beside_tools_in_other_apis(running: Running) -> None:
    """As in chat."""
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    base = {"model": MODEL, "temperature": 1.0, "seed": 1, "logit_bias": {str(loaded_id(running, "{")): 100}}
    form = {"format": {"type": "json_schema", "name": "n", "schema": NUMBER}}
    body = {**base, "input": "x", "tools": flat, "text": form, "max_output_tokens": 100}
    (item,) = running.post("/v1/responses", body).json()["output"]
    jsonschema.validate(json.loads(item["content"][0]["text"]), NUMBER)
    given = [{"name": t["name"], "input_schema": t["parameters"]} for t in flat]
    body = {**base, "messages": user("x"), "tools": given, "output_config": form, "max_tokens": 100}
    (block,) = running.post("/v1/messages", body).json()["content"]
    jsonschema.validate(json.loads(block["text"]), NUMBER)


def test_text_that_does_not_begin_as_a_call() -> None:
    """Of forms whose calls have no marker: calls of their schemas are the whole output, or there is none."""
    for parser, call in (
        (LlamaCalls, '{"name": "paint", "parameters": {"colour": "red", "sides": SIDES}}'),
        (PythonicCalls, '[paint(**{"colour": "red", "sides": SIDES})]'),
    ):
        form = calls_in_text(parser, TOOLS[:1])
        assert is_taken(form, call.replace("SIDES", "4"))
        for text in ("", "No call.", "\n\n", f"So: {call}"):
            assert is_taken(form, text)
        for text in (call.replace("SIDES", "40"), f" {call}", call[:3], f"So {parser.MARKERS[0]}{call}"):
            assert not is_taken(form, text)


def test_text_with_calls() -> None:
    """A call behind its marker has arguments of its schema; text may stand around it."""
    form = calls_in_text(HermesCalls, TOOLS[:1])
    for sides, is_right in ((4, True), (40, False)):
        call = f'<tool_call>\n{{"name": "paint", "arguments": {{"colour": "red", "sides": {sides}}}}}\n</tool_call>'
        assert is_taken(form, call) == is_taken(form, f"I paint. {call} Done.") == is_right
    assert is_taken(form, "No call at all.")
    assert not is_taken(form, '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')


def test_a_second_marker_is_no_way_around() -> None:
    """Of a form whose calls begin with one of two, the text has neither but where the grammar holds a call."""
    form, call = calls_in_text(DeepSeekCalls, TOOLS[:1]), 'paint<｜tool▁sep｜>{"sides": 40}'
    held = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>paint\n```json\n{"colour": "red", "sides": 4}\n```'
    held += "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    assert is_taken(form, f"So: <｜tool▁calls▁begin｜>{held} Done.")
    assert not is_taken(form, f"So: <｜tool▁call▁begin｜>{call}")
    assert not is_taken(form, f"<｜tool▁call▁begin｜>{call} <｜tool▁calls▁begin｜>{held}")


def is_taken(form: StructuredOutputsParams, text: str) -> bool:
    """Whether a text has the form as a whole."""
    matcher = compiled(form.definition(), tokenizer_of([bytes([value]) for value in range(256)]))
    return bool(matcher.consume_tokens([*text.encode()])) and bool(matcher.is_accepting())


def test_arguments_are_those_that_a_function_has() -> None:
    """Objects are closed where the schema leaves open whether there are others, and no two schemas speak of one."""
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    shut = {**inner, "additionalProperties": False}
    outer = {"type": "object", "properties": {"x": inner, "y": {"type": "array", "items": inner}}}
    assert closed(outer) == {
        "type": "object", "properties": {"x": shut, "y": {"type": "array", "items": shut}},
        "additionalProperties": False,
    }  # fmt: skip
    assert "additionalProperties" not in outer
    for left in (
        {**inner, "additionalProperties": True},
        {**inner, "patternProperties": {"b": {}}},
        {**inner, "required": ["b"]},
        {**inner, "anyOf": [{"required": ["b"]}, {}]},
        {"allOf": [inner, {"properties": {"b": {}}}]},
        {"type": "object"},
        {"const": inner},
        {"enum": [inner]},
        {**inner, "required": 5},
        {**inner, "required": [[]]},
        {**inner, "allOf": 5},
    ):
        assert closed(left) == left
    named = {"properties": {"properties": {"type": "object"}, "x": {"type": "object"}}}
    assert closed(named) == {**named, "additionalProperties": False}
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"properties": {"a": deep}}
    assert closed(deep) is deep


@pytest.mark.parametrize("wrong", [{"required": 5}, {"required": [{}]}, {"allOf": 5}, {"enum": 5}])
def test_schemas_that_are_none(running: Running, wrong: dict[str, Any]) -> None:
    """Refused as the client's, where a call is demanded."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}, **wrong}}}
    with pytest.raises(openai.BadRequestError) as caught:
        running.client().chat.completions.create(**ask(0, tools=[tool]))
    assert caught.value.param == "tools[0].function.parameters"
    assert next(iter(wrong)) in str(caught.value)


def test_large_tools_are_worked_on_aside(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the event loop, which others wait for."""
    threads: list[str] = []

    def noted(schema: Any) -> Any:
        threads.append(threading.current_thread().name)
        return closed(schema)

    monkeypatch.setattr(held, "closed", noted)
    tool = function("f", a={"enum": [*range(200_000)]})
    with pytest.raises(openai.BadRequestError, match="are allowed; shorten it"):
        running.client().chat.completions.create(**ask(0, tools=[tool]))
    assert {name.partition("_")[0] for name in threads} == {"corellm-aside"}


@pytest.mark.parametrize("parser", [HermesCalls, LlamaCalls, MistralCalls, DeepSeekCalls, PythonicCalls])
def test_a_form_is_read_as_it_is_held_to(parser: type[ToolParser]) -> None:
    """What the grammar of a form spells is what the form's parser reads: calls, and nothing else."""
    form = json.loads(calls_alone(parser, TOOLS, one_call=False).definition())["structural_tag"]["format"]
    written = [("paint", '{"colour": "red", "sides": 4}'), ("wait", "{}")]
    tags = {tag["begin"].removeprefix(parser.WRITTEN[0]).partition(parser.WRITTEN[1])[0]: tag for tag in form["tags"]}
    assert tags.keys() == SCHEMAS.keys()
    text = form["separator"].join(tags[name]["begin"] + given + tags[name]["end"] for name, given in written)
    several, one = (calls_alone(parser, TOOLS, one_call=one_call) for one_call in (False, True))
    assert (is_taken(several, text), is_taken(one, text), is_taken(several, f"So: {text}")) == (True, False, False)
    read = parser(TOOLS)
    pieces = [*read.feed(text), *read.finish()]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["paint", "wait"]
    told = ["", ""]
    for piece in pieces:
        if isinstance(piece, CallArguments):
            told[piece.index] += piece.text
    assert told == [given for _, given in written]
    assert not any(isinstance(piece, Text) and piece.source.strip() for piece in pieces)
