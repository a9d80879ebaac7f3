"""Tools and reasoning over HTTP: prompts, replies whole and streamed, loops of calls, wrong requests."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from corellm import AsyncLLM
from corellm.errors import ConfigError
from corellm.outputs import CompletionOutput, RequestOutput
from corellm_llava import Llava
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_server.options import ServerOptions
from corellm_server.output_forms import OutputForm, OutputForms
from corellm_server.reasoning.marked import ThinkReasoning
from corellm_server.responses.chat import ChatResponse
from corellm_server.responses.usage import Usage
from corellm_server.tools.objects import HermesCalls
from corellm_server.tools.tagged import GlmCalls
from extensions.server.tests.conftest import MODEL, Running, data_url, serving, user
from extensions.server.tests.parsing.forms import FORMS, TOOLS
from extensions.server.tests.scripted import ScriptedLLM
from extensions.server.tests.tools.conftest import Writing
from tests.templates.published import LLAMA, MISTRAL, QWEN

CASES = [(name, form) for name, forms in FORMS.items() for form in forms]


@pytest.fixture(scope="module")
def create(running: Running) -> Any:
    return running.client().chat.completions.create


def ask(messages: Any = "What now?", **fields: Any) -> dict[str, Any]:
    """A request with tools."""
    messages = user(messages) if isinstance(messages, str) else messages
    return {"model": MODEL, "messages": messages, "tools": TOOLS, **fields}


def streamed(create: Any, request: dict[str, Any]) -> tuple[dict[str, Any], str | None, Any]:
    """The message that the events of a stream make, why it ended, and its usage."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    reason, usage = None, None
    for chunk in create(**request, stream=True, stream_options={"include_usage": True}):
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.to_dict()
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    assert (call["type"], call["function"]["arguments"]) == ("function", "")
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert call.keys() == {"index", "function"}
                    message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            assert reason is None, "the reason comes last"
            reason = choice.finish_reason
    return message, reason, usage


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_form_whole_and_streamed(writing: Writing, name: str, form: str) -> None:
    """Text, calls and the reason, by OpenAI's types; both ways the same."""
    output, text, calls = FORMS[name][form]
    server, scripted = writing(name)
    create = server.client().chat.completions.create
    scripted.outputs = [output, output]
    whole = create(**ask())
    message, reason, _ = streamed(create, ask())
    ChatCompletion.model_validate(whole.to_dict(), strict=True)
    (choice,) = whole.choices
    got = choice.message.tool_calls or []
    assert [(call.function.name, json.loads(call.function.arguments)) for call in got] == calls
    assert choice.message.content == (text or (None if calls else ""))
    assert choice.finish_reason == reason == ("tool_calls" if calls else "stop")
    assert len({call.id for call in got}) == len(calls)
    assert message["content"] == text
    assert message["tool_calls"] == [call.function.to_dict() for call in got]


def test_the_template_gets_the_tools(create: Any, scripted: ScriptedLLM) -> None:
    """In the published form; with `none` the model is not told of them, and its output is text."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    scripted.outputs = [call, call, call]
    flat = {"type": "function", "function": {"name": "f", "strict": False}}
    create(**ask())
    told = scripted.prompts[-1].text or ""
    assert all(f"\n{json.dumps(tool)}" in told for tool in TOOLS)
    create(**{**ask(), "tools": [flat]})
    parameters = '"parameters": {"type": "object", "properties": {}}'
    assert f'{{"type": "function", "function": {{"name": "f", {parameters}}}}}' in (scripted.prompts[-1].text or "")
    choice = create(**ask(tool_choice="none")).choices[0]
    assert "# Tools" not in (scripted.prompts[-1].text or "")
    assert (choice.message.content, choice.finish_reason) == (call, "stop")


@pytest.mark.parametrize(
    ("parser", "template", "call"),
    [
        ("hermes", QWEN, '<tool_call>{"name": "weather", "arguments": {"city": "Ba"}}</tool_call>'),
        ("llama3_json", LLAMA, '{"name": "weather", "parameters": {"city": "Ba"}}'),
        ("mistral", MISTRAL, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ba"}}]'),
    ],
)
def test_a_loop_of_three_calls(scripted: ScriptedLLM, create: Any, parser: str, template: str, call: str) -> None:
    """Each reply goes back as it came, with a result, one with an image; templates show the arguments."""
    messages: list[Any] = user("Which weather is there?")
    extra = {"chat_template": template}
    scripted.outputs = [call.replace("Ba", city) for city in ("Bari", "Basel", "Bath")] + ["Rain."]
    image = {"type": "image_url", "image_url": {"url": data_url(1)}}
    for result in ("sun", [{"type": "text", "text": "see"}, image], '{"sky": "grey"}'):
        message = create(**ask(messages), extra_body=extra).choices[0].message
        (got,) = message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": got.id, "content": result}]
    last = create(**ask(messages), extra_body=extra).choices[0]
    assert (last.message.content, last.finish_reason) == ("Rain.", "stop")
    prompt = scripted.prompts[-1]
    assert prompt.text is not None
    assert all(f'{{"city": "{city}"}}' in prompt.text for city in ("Bari", "Basel", "Bath"))
    assert "grey" in prompt.text
    assert len(prompt.features) == 1


def test_one_call(scripted: ScriptedLLM, create: Any) -> None:
    """With `parallel_tool_calls: false` the others are left out."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for asked, number in ((None, 2), (True, 2), (False, 1)):
        scripted.outputs = [call * 2, call * 2]
        whole = create(**ask(parallel_tool_calls=asked)).choices[0].message.tool_calls
        message, _, _ = streamed(create, ask(parallel_tool_calls=asked))
        assert [len(whole), len(message["tool_calls"])] == [number, number]


def test_a_call_that_was_cut_off_can_be_sent_back(scripted: ScriptedLLM, create: Any) -> None:
    """Its arguments are what there is, and it ended by its length; published templates take it again."""
    scripted.reason = "length"
    scripted.outputs = ['<tool_call>{"name": "weather", "arguments": {"city": "Ba']
    choice = create(**ask()).choices[0]
    scripted.reason = "stop"
    (call,) = choice.message.tool_calls
    assert (call.function.arguments, choice.finish_reason) == ('{"city": "Ba', "length")
    items = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}"
    )
    items += "{% endfor %}{% endfor %}{% endfor %}{{ tools }}<tool_call>"
    result = {"role": "tool", "tool_call_id": call.id, "content": "cut off"}
    for template in (QWEN, LLAMA, MISTRAL, items):
        scripted.outputs = ["Oh."]
        again = create(**ask([*user("x"), choice.message, result]), extra_body={"chat_template": template})
        assert again.choices[0].message.content == "Oh."


def test_reasoning_is_told_apart(scripted: ScriptedLLM, create: Any) -> None:
    """Whole and streamed, with a call behind it; its tokens are counted; it can be left out and sent back."""
    output = '<think>\nI must know.\n</think>\n\nI look.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    scripted.outputs = [output] * 4
    whole = create(**ask())
    message = whole.choices[0].message
    assert message.reasoning == message.reasoning_content == "I must know."
    assert message.content == "I look."
    share = len("I must know.") / len(output)
    assert whole.usage.completion_tokens_details.reasoning_tokens == round(whole.usage.completion_tokens * share)
    got, reason, usage = streamed(create, ask())
    assert (got["reasoning"], got["content"], reason) == ("I must know.", "I look.", "tool_calls")
    assert [call["name"] for call in got["tool_calls"]] == ["now"]
    assert usage.completion_tokens_details == whole.usage.completion_tokens_details
    hidden = create(**ask(), extra_body={"include_reasoning": False}).choices[0].message.to_dict()
    assert {"reasoning", "reasoning_content"}.isdisjoint(hidden)
    assert hidden["content"] == "I look."
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}
    assert create(**ask([*user("x"), message, result])).choices[0].message.content == "I look."


def test_the_prompt_may_begin_or_end_the_reasoning(scripted: ScriptedLLM, create: Any) -> None:
    """As templates do that think always, and those that need not; efforts reach templates that take them."""
    begins = "{{ messages[0].content }}{{ reasoning_effort }}<think>\n{# </think> #}"
    scripted.outputs = ["Hm.</think>Yes.", "Yes."]
    request = {"model": MODEL, "messages": user("x"), "reasoning_effort": "high"}
    message = create(**request, extra_body={"chat_template": begins}).choices[0].message
    assert (message.content, message.reasoning) == ("Yes.", "Hm.")
    assert scripted.prompts[-1].text == "xhigh<think>\n"
    message = create(**{**request, "reasoning_effort": "none"}).choices[0].message
    assert message.content == "Yes."
    assert (scripted.prompts[-1].text or "").endswith("<think>\n\n</think>\n\n")


def test_markers_that_are_special_tokens(loaded: AsyncLLM) -> None:
    """They are kept for the parser and other special tokens are left out, unless the client wants them."""
    scripted = ScriptedLLM(loaded)
    tokenizer = loaded.input_processor.tokenizer
    before = OutputForms(loaded.input_processor, ServerOptions(tool_call_parser="hermes")).of(TOOLS, None)
    assert not before.keeps_special
    eos = tokenizer.eos_token
    pad = tokenizer.pad_token
    call = f'{pad}Yes{eos}.<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>{eos}'

    class Special(OutputForms):
        """Forms of a model whose marker is a special token."""

        _special = frozenset({"<tool_call>", eos, pad})

    with serving(scripted) as server:
        server.service.forms = Special(loaded.input_processor, server.service.config.options)
        create = server.client().chat.completions.create
        scripted.outputs = [call] * 3
        message, _, _ = streamed(create, ask())
        assert (message["content"], len(message["tool_calls"])) == ("Yes.", 1)
        assert create(**ask()).choices[0].message.content == "Yes."
        assert not scripted.params[-1].skip_special_tokens
        wanted = create(**ask(), extra_body={"skip_special_tokens": False}).choices[0].message.content
        assert wanted == f"{pad}Yes{eos}.{eos}"


F = {"name": "f"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [7]}, "tools[0]"), ({"tools": [{}]}, "tools[0]"), ({"tools": [{"type": "custom"}]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f" * 129}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {**F, "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {**F, "description": 1}}]}, "tools[0].function.description"),
    ({"tools": [{"type": "function", "function": {**F, "strict": "yes"}}]}, "tools[0].function.strict"),
    ({"tools": [{"type": "function", "function": {**F, "x": 1}}]}, "tools[0].function.x"),
    ({"tools": [{"type": "function", "function": F, "x": 1}]}, "tools[0].x"),
    ({"tools": [{"type": "function", "function": F}] * 2}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": "some"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": F}}, "tool_choice"), ({"tool_choice": 5}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"), ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"include_reasoning": 1}, "include_reasoning"), ({"functions": [F]}, "functions"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_requests(create: Any, fields: dict[str, Any], param: str) -> None:
    """400, with the place."""
    with pytest.raises(openai.BadRequestError) as caught:
        create(model=MODEL, messages=user("x"), extra_body=fields)
    assert caught.value.param == param


def test_a_model_whose_form_is_not_known(loaded: AsyncLLM) -> None:
    """The error says what to pass; a template that does not take tools is no use either; `none` switches off."""
    scripted = ScriptedLLM(loaded)
    plain = {"chat_template": "{{ messages[0].content }}"}
    with serving(scripted, allow_request_templates=True) as server:
        create = server.client().chat.completions.create
        with pytest.raises(openai.BadRequestError, match=r"--tool-call-parser and one of .*hermes"):
            create(**ask(), extra_body={"chat_template": "{{ tools }}{{ messages[0].content }}"})
        with pytest.raises(openai.BadRequestError, match="template does not take tools"):  # no option would help
            create(**ask(), extra_body=plain)
    with serving(scripted, allow_request_templates=True, tool_call_parser="hermes", reasoning_parser="none") as server:
        create = server.client().chat.completions.create
        with pytest.raises(openai.BadRequestError, match="template does not take tools"):
            create(**ask(), extra_body=plain)
        scripted.outputs = ["<think>a</think>b"]
        assert create(**ask()).choices[0].message.content == "<think>a</think>b"
    with serving(scripted, tool_call_parser="none") as server, pytest.raises(openai.BadRequestError, match="tools"):
        server.client().chat.completions.create(**ask())
    with pytest.raises(ConfigError, match=r"no parser 'hermez'; there are deepseek, .*hermes"):
        OutputForms(loaded.input_processor, ServerOptions(tool_call_parser="hermez"))


def test_an_adapter_states_its_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attributes reach the server, and come before what the template shows."""
    monkeypatch.setattr(Llava, "tool_parser", "glm", raising=False)
    path = make_tiny_checkpoint(tmp_path / "model")
    (path / "chat_template.jinja").write_text("{{ tools }}<tool_call></think>")
    with closing(AsyncLLM(str(path), dtype="float32")) as llm:
        assert llm.input_processor.parsers == {"tool_parser": "glm"}
        form = OutputForms(llm.input_processor, ServerOptions()).of(TOOLS, None)
    assert (form.tool_parser, form.reasoning_parser) == (GlmCalls, ThinkReasoning)


@pytest.mark.parametrize("parser", ["think", "deepseek_r1"])
def test_a_message_that_goes_on(loaded: AsyncLLM, parser: str) -> None:
    """What goes on with an answer is no reasoning, and what goes on with reasoning is."""
    scripted = ScriptedLLM(loaded)
    with serving(scripted, reasoning_parser=parser) as server:
        create = server.client().chat.completions.create
        for begun, thought, text in (("The number is", "", "7</think>8"), ("<think>So it", "7", "8")):
            scripted.outputs = ["7</think>8"]
            messages: Any = [*user("x"), {"role": "assistant", "content": begun, "prefix": True}]
            message = create(model=MODEL, messages=messages).choices[0].message.to_dict()
            assert (message.get("reasoning", ""), message["content"]) == (thought, text)


@pytest.mark.parametrize(("arguments", "reason"), [('{"city": "Ba', "stop"), ('{"city": "Bari"}', "tool_calls")])
def test_a_stop_string_within_a_call(arguments: str, reason: str) -> None:
    """A call that it cuts off is not the reason; a whole one is."""
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}'
    completion = CompletionOutput(0, text, [1], finish_reason="stop", stop_reason="r")
    response = ChatResponse("x", MODEL, None, usage=Usage(), form=OutputForm(tool_parser=HermesCalls))
    (choice,) = response.whole(RequestOutput("r", "x", [1], [completion], finished=True))["choices"]
    assert choice["finish_reason"] == reason
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == arguments
