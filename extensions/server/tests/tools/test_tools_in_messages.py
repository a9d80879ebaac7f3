"""Tools and thinking in `/v1/messages`: blocks, their events, loops of calls by Anthropic's client, wrong requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import beta_tool
from anthropic.types import Message

from corellm import AsyncLLM
from corellm.sampling.extensions import NO_EXTENSIONS
from extensions.server.tests.conftest import MODEL, Running, serving, user
from extensions.server.tests.parsing.forms import FORMS, TOOLS
from extensions.server.tests.scripted import ScriptedLLM
from extensions.server.tests.test_messages import COUNT, PATH, ask, client_of, events_of, image, told
from extensions.server.tests.tools.conftest import Writing
from extensions.server.tests.tools.test_tools import CASES
from tests.templates.published import LLAMA, MISTRAL, QWEN

GIVEN: list[Any] = [
    {
        "name": tool["function"]["name"], "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]  # fmt: skip
"""The tools as Anthropic has them."""
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bari"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
OUTPUT = f"<think>\nI must know.\n</think>\n\nI look.\n{CALL}\n{NOW}\nDone."
KINDS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


def request(messages: Any = "What now?", **fields: Any) -> dict[str, Any]:
    """A request with tools."""
    return {
        **ask(user(messages) if isinstance(messages, str) else messages),
        "max_tokens": 500,
        "tools": GIVEN,
        **fields,
    }


def assembled(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The blocks that the events of a stream make, which come one after the other, and why it ended."""
    blocks: list[dict[str, Any]] = []
    is_open, arguments = False, ""
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert (is_open, event["index"]) == (False, len(blocks))
            is_open, arguments = True, ""
            blocks.append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            assert (is_open, event["index"]) == (True, len(blocks) - 1)
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                assert blocks[-1]["type"] == "tool_use"
                arguments += delta["partial_json"]
            else:
                expected, field = KINDS[blocks[-1]["type"]]
                assert delta["type"] == expected
                blocks[-1][field] += delta[field]
        elif kind == "content_block_stop":
            assert (is_open, event["index"]) == (True, len(blocks) - 1)
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments)
    assert not is_open
    return blocks, events[-2]["delta"]["stop_reason"]


def alike(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks without what is new each time."""
    return [{name: value for name, value in block.items() if name != "id"} for block in blocks]


def test_blocks_whole_and_streamed(running: Running, scripted: ScriptedLLM) -> None:
    """Thinking, text, calls and text again, in order, by Anthropic's types; its client makes the same of a stream."""
    scripted.outputs = [OUTPUT] * 3
    thinking = {"type": "adaptive"}
    whole = running.post(PATH, request(thinking=thinking)).json()
    Message.model_validate(whole, strict=True)
    assert alike(whole["content"]) == [
        {"type": "thinking", "thinking": "I must know.", "signature": ""},
        {"type": "text", "text": "I look.", "citations": None},
        {"type": "tool_use", "name": "weather", "input": {"city": "Bari"}},
        {"type": "tool_use", "name": "now", "input": {}},
        {"type": "text", "text": "Done.", "citations": None},
    ]
    assert whole["stop_reason"] == "tool_use"
    ids = [block["id"] for block in whole["content"] if "id" in block]
    assert all(one.startswith("toolu_") for one in ids)
    assert len({*ids}) == 2
    events = events_of(running.post(PATH, request(stream=True, thinking=thinking)).text)
    blocks, reason = assembled(events)
    assert (alike(blocks), reason) == (alike(whole["content"]), "tool_use")
    assert events[-2]["usage"] == whole["usage"]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert all(deltas.count(kind) > 1 for kind in ("thinking_delta", "text_delta", "input_json_delta"))
    with (
        client_of(running) as client,
        client.messages.stream(
            model=MODEL,
            max_tokens=500,
            tools=GIVEN,
            thinking={"type": "adaptive"},
            messages=user("x"),  # type: ignore[arg-type]
        ) as stream,
    ):
        final = stream.get_final_message().to_dict()
    assert alike(final["content"]) == alike(whole["content"])  # type: ignore[arg-type]
    assert final["stop_reason"] == "tool_use"


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_form(writing: Writing, name: str, form: str) -> None:
    """Both ways the same: the calls, and no empty text beside them."""
    output, text, calls = FORMS[name][form]
    server, scripted = writing(name)
    scripted.outputs = [output, output]
    whole = server.post(PATH, request()).json()
    blocks, reason = assembled(events_of(server.post(PATH, request(stream=True)).text))
    got = whole["content"]
    assert [(block["name"], block["input"]) for block in got if block["type"] == "tool_use"] == calls
    assert [block["text"] for block in got if block["type"] == "text"] == ([text] if text else [])
    assert whole["stop_reason"] == reason == ("tool_use" if calls else "end_turn")
    assert alike(blocks) == alike(got)


def test_every_cut(running: Running, scripted: ScriptedLLM) -> None:
    """Wherever the output is cut in two, the stream is the whole message."""
    scripted.outputs = [OUTPUT]
    want = alike(running.post(PATH, request()).json()["content"])
    for cut in range(1, len(OUTPUT)):
        scripted.outputs, scripted.cuts = [OUTPUT], [cut]
        assert alike(assembled(events_of(running.post(PATH, request(stream=True)).text))[0]) == want, cut
    scripted.cuts = None


def test_calls_that_are_no_object(running: Running, scripted: ScriptedLLM) -> None:
    """One that was cut off is text; so is a number that JSON has not. A stream has what came of the arguments."""
    begun = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ba'
    scripted.reason = "length"
    scripted.outputs = [NOW + begun, NOW + begun, "<think>\nHm"]
    body = request(max_tokens=3)
    whole = running.post(PATH, body).json()
    events = events_of(running.post(PATH, {**body, "stream": True}).text)
    thinks = running.post(PATH, {**body, "thinking": {"type": "adaptive"}}).json()
    scripted.reason = "stop"
    assert alike(whole["content"]) == [
        {"type": "tool_use", "name": "now", "input": {}}, {"type": "text", "text": begun, "citations": None},
    ]  # fmt: skip
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "max_tokens"
    pieces = [event["delta"]["partial_json"] for event in events if event.get("index") == 1 and "delta" in event]
    assert "".join(pieces) == '{"city": "Ba'
    assert [block["type"] for block in thinks["content"]] == ["thinking"]
    broken = '<tool_call>{"name": "weather", "arguments": {"days": 1e999}}</tool_call>'
    scripted.outputs = [broken, ""]
    got = running.post(PATH, request()).json()
    assert got["stop_reason"] == "end_turn"
    assert [block["type"] for block in got["content"]] == ["text"]
    assert '{"days": 1e999}' in got["content"][0]["text"]
    assert alike(running.post(PATH, request()).json()["content"]) == [{"type": "text", "text": "", "citations": None}]


@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL])
def test_a_loop_of_three_calls(running: Running, scripted: ScriptedLLM, template: str) -> None:
    """Each message goes back as it came, thinking with it, with a result, one with an image."""
    call = {
        QWEN: '<think>Hm.</think><tool_call>{"name": "weather", "arguments": {"city": "Ba"}}</tool_call>',
        LLAMA: '{"name": "weather", "parameters": {"city": "Ba"}}',
        MISTRAL: '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ba"}}]',
    }[template]
    scripted.outputs = [call.replace("Ba", city) for city in ("Bari", "Basel", "Bath")] + ["Rain."]
    messages: list[Any] = user("Which weather is there?")
    arguments: Any = {"model": MODEL, "max_tokens": 500, "tools": GIVEN, "extra_body": {"chat_template": template}}
    with client_of(running) as client:
        for result in ("sun", [{"type": "text", "text": "see"}, image(1)], json.dumps({"sky": "grey"})):
            got = client.messages.create(messages=messages, **arguments)
            used = got.content[-1]
            assert used.type == "tool_use"
            returned = {"type": "tool_result", "tool_use_id": used.id, "content": result}
            messages += [got.to_param(), {"role": "user", "content": [returned]}]
        last = client.messages.create(messages=messages, **arguments)
    assert [block.to_dict()["text"] for block in last.content] == ["Rain."]
    prompt = scripted.prompts[-1]
    assert all(f'{{"city": "{city}"}}' in (prompt.text or "") for city in ("Bari", "Basel", "Bath"))
    assert "grey" in (prompt.text or "")
    assert "toolu_" not in (prompt.text or "")
    assert len(prompt.features) == 1


def test_the_clients_own_loop(running: Running, scripted: ScriptedLLM) -> None:
    """Its runner asks the server to keep the conversation first, and goes on without when told that it cannot."""
    scripted.outputs, cities = [CALL, "Rain."], []

    @beta_tool
    def weather(city: str) -> str:
        """The weather."""
        cities.append(city)
        return "grey"

    with client_of(running) as client:
        last = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=500,
            messages=user("Which weather is there?"),
            tools=[weather],  # type: ignore[arg-type]
        ).until_done()
    assert cities == ["Bari"]
    assert [block.to_dict()["text"] for block in last.content] == ["Rain."]
    assert "grey" in (scripted.prompts[-1].text or "")
    for kind in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        got = running.post(PATH, request(thread=kind))
        assert got.status_code == 400
        assert got.json()["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_thoughts_go_back(running: Running, scripted: ScriptedLLM) -> None:
    """They reach a template that shows them, as chat's do."""
    shown = "{{ messages[1].reasoning_content }}{# </think> #}"
    scripted.outputs = ["<think>Hm.</think>Yes.", "No."]
    asked = {"thinking": {"type": "adaptive"}}
    first = running.post(PATH, {**ask(user("x")), **asked, "chat_template": "x{# </think> #}"}).json()["content"]
    turns = [*user("x"), {"role": "assistant", "content": first}, *user("y")]
    running.post(PATH, {**ask(turns), "chat_template": shown}).raise_for_status()
    assert scripted.prompts[-1].text == "Hm."


def test_neighbours_of_the_same_role_are_one_turn(running: Running, scripted: ScriptedLLM) -> None:
    """Their blocks, calls and thoughts; a place in an error is still that of the message that was sent."""
    thought, text = {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "b"}
    uses = [{"type": "tool_use", "id": f"toolu_{i}", "name": "now", "input": {}} for i in range(2)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": "1"} for i in range(2)]

    def turns(*contents: tuple[str, list[Any]], apart: bool) -> list[dict[str, Any]]:
        one = [{"role": role, "content": content} for role, content in contents]
        each = [{"role": role, "content": [block]} for role, content in contents for block in content]
        return each if apart else one

    conversations = (
        [("user", [text, image(1), text])],
        [("user", [text]), ("assistant", [thought, text, *uses]), ("user", [*results, text, text])],
        [("user", [text, text]), ("assistant", [text, text])],
    )
    for contents in conversations:
        prompts = []
        for apart in (False, True):
            scripted.outputs = ["ok"]
            running.post(PATH, request(turns(*contents, apart=apart))).raise_for_status()
            prompts.append(scripted.prompts[-1])
        assert prompts[0].text == prompts[1].text
        assert prompts[0].token_ids == prompts[1].token_ids
    wrong = [*user("a"), *user("b"), {"role": "user", "content": [text, {"type": "audio"}]}]
    assert told(running.post(PATH, request(wrong)), 400).startswith("messages[2].content[1]")
    odd = {"role": "assistant", "content": "x"}
    odds = [*user("a"), {**odd, "tool_calls": 5}, {**odd, "tool_calls": [7]}, *user("b")]
    told(running.post(PATH, request(odds)), 400)


def test_the_template_gets_the_tools(running: Running, scripted: ScriptedLLM) -> None:
    """As chat's; with `none` the model is not told of them. Their tokens are counted."""
    scripted.outputs = [CALL] * 4
    marked = [{**GIVEN[0], "type": "custom", "cache_control": {"type": "ephemeral"}}, GIVEN[1]]
    for tools in (GIVEN, marked):
        running.post(PATH, request(tools=tools)).raise_for_status()
        assert all(f"\n{json.dumps(tool)}" in (scripted.prompts[-1].text or "") for tool in TOOLS)
    length = len(scripted.prompts[-1].token_ids)
    assert running.post(COUNT, request()).json()["input_tokens"] == length
    got = running.post(PATH, request(tool_choice={"type": "none"})).json()
    assert (got["content"][0]["text"], got["stop_reason"]) == (CALL, "end_turn")
    assert "# Tools" not in (scripted.prompts[-1].text or "")
    count = running.post(COUNT, request(tool_choice={"type": "none"})).json()["input_tokens"]
    assert count == len(scripted.prompts[-1].token_ids) < length


def test_one_call(running: Running, scripted: ScriptedLLM) -> None:
    """With `disable_parallel_tool_use` the others are left out."""
    for disabled, number in ((None, 2), (False, 2), (True, 1)):
        choice = {"type": "auto", "disable_parallel_tool_use": disabled}
        scripted.outputs = [CALL + NOW] * 2
        whole = running.post(PATH, request(tool_choice=choice)).json()["content"]
        streamed, _ = assembled(events_of(running.post(PATH, request(tool_choice=choice, stream=True)).text))
        assert [len(whole), len(streamed)] == [number, number]


def test_thinking(running: Running, scripted: ScriptedLLM) -> None:
    """Reaches a template that takes it; what was thought comes where it was asked for, unless it is to be left out."""
    template = "{{ messages[0].content }}{{ enable_thinking is defined and enable_thinking }}"
    template += "{% if enable_thinking is not defined %} as it likes{% endif %}{# <think> </think> #}"
    asked: list[tuple[Any, str]] = [
        ({"type": "enabled", "budget_tokens": 1024}, "xTrue"), ({"type": "adaptive"}, "xTrue"),
        ({"type": "disabled"}, "xFalse"), (None, "xFalse as it likes"),
        ({"type": "enabled", "display": "omitted"}, "xTrue"),
    ]  # fmt: skip
    for thinking, want in asked:
        scripted.outputs = ["<think>Hm.</think>Yes."]
        body = {**ask(user("x")), "chat_template": template, "thinking": thinking}
        got = running.post(PATH, body).json()["content"]
        assert scripted.prompts[-1].text == want
        is_shown = want == "xTrue" and thinking.get("display") != "omitted"
        assert [block["type"] for block in got] == (["thinking", "text"] if is_shown else ["text"])
        assert got[-1]["text"] == "Yes."
    running.post(COUNT, body).raise_for_status()


def test_a_budget_without_what_bounds_it(
    scripted: ScriptedLLM, loaded: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anthropic's clients must state one: it is left out where OpenAI's field, which nobody must give, is refused."""
    monkeypatch.setattr(loaded.input_processor, "_extensions", NO_EXTENSIONS)
    template = "{{ messages[0].content }}{# <think> </think> #}"
    scripted.outputs = ["<think>Hm.</think>Yes."]
    with serving(scripted, allow_request_templates=True) as server:
        body = {**ask(user("x")), "chat_template": template}
        got = server.post(PATH, {**body, "thinking": {"type": "enabled", "budget_tokens": 9}})
        assert [block["type"] for block in got.json()["content"]] == ["thinking", "text"]
        refused = server.post("/v1/chat/completions", {**body, "thinking_token_budget": 9})
        assert (refused.status_code, "corellm-structured" in refused.text) == (400, True)


TOOL = {"name": "f", "input_schema": {"type": "object"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [7]}, "tools[0] must be"), ({"tools": [TOOL, {}]}, "tools[1].input_schema"),
    ({"tools": [{**TOOL, "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]: type 'web_search_20250305'"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: type 'bash_20250124'"),
    ({"tools": [{**TOOL, "type": ["custom"]}]}, "tools[0]: type"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "name": None}]}, "tools[0].name"),
    ({"tools": [{**TOOL, "description": 1}]}, "tools[0].description"),
    ({"tools": [{**TOOL, "parameters": {}}]}, "tools[0] has no 'parameters'"), ({"tools": [TOOL] * 2}, "'f' twice"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading is not supported"),
    ({"tools": [{**TOOL, "name": f"f{i}"} for i in range(129)]}, "tools has 129"),
    ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {}}, "tool_choice"),
    ({"tool_choice": {"type": "some"}}, "tool_choice"), ({"tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "other"}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": "no"}}, "tool_choice"),
    ({"thinking": True}, "thinking"), ({"thinking": {"type": "enabled", "display": "all"}}, "thinking"),
    ({"thinking": {"budget_tokens": 9}}, "thinking"),
]  # fmt: skip


def test_wrong_requests(running: Running) -> None:
    """400 with the place, whether a message or its tokens are asked for."""
    for fields, place in WRONG:
        for path in (PATH, COUNT):
            assert place in told(running.post(path, {**ask(user("x")), **fields}), 400), fields
