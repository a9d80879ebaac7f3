"""Conversations are rendered as transformers' `apply_chat_template` renders them; it is asked beside us every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from corellm.errors import PromptError
from corellm.multimodal.chat.guarding import Guard
from corellm.multimodal.chat.messages import Guards, normalize_messages
from corellm.multimodal.chat.rendering import ChatRenderer
from corellm.templates.renderer import TemplateRenderer
from tests.templates.published import DEEPSEEK, LLAMA, MISTRAL, PARTS, QWEN, TEXT

OPEN = Guards(Guard([]), Guard([]))

USER = {"role": "user", "content": " Wie heißt <b>das</b>, \"bitte\"?\n{{ 7 * 7 }} {% if %} '☃'\n"}
SAID = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nEin Schneemann. "}
SYSTEM = {"role": "system", "content": "Sei\tkurz."}
CONVERSATIONS = {
    "one question": [USER],
    "turns": [USER, SAID, {"role": "user", "content": "Warum?"}],
    "a system message": [SYSTEM, USER, SAID, USER],
    "an assistant message at the end": [USER, SAID],
}


def call(arguments: Any) -> list[dict[str, Any]]:
    """A conversation in which a tool is called and has returned."""
    calls = [{"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}}]
    return [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": '{"rain": "ja", "mm": 3.5}'},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def render(tokenizer: Any, templates: TemplateRenderer) -> Callable[..., Any]:
    """What we make of a conversation: the text, or None where the template refuses it."""
    renderer = ChatRenderer(tokenizer, templates)

    def render(messages: Any, template: str, **options: Any) -> Any:
        try:
            options.setdefault("add_generation_prompt", False)
            return renderer.render(normalize_messages(messages, OPEN), template, lambda *_: "<image>", **options).prompt
        except PromptError:
            return None

    return render


@pytest.fixture(scope="module")
def expected(tokenizer: Any) -> Callable[..., Any]:
    """What transformers makes of it."""

    def expected(messages: Any, template: str, **options: Any) -> Any:
        try:
            return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
        except Exception:
            return None

    return expected


@pytest.mark.parametrize("template", TEXT.values(), ids=TEXT)
def test_text(render: Any, expected: Any, template: str) -> None:
    """Conversations of text, with and without the start of a reply, with and without tools."""
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {"a": [1, None]}}}]
    for name, messages in CONVERSATIONS.items():
        for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}, {"tools": tools}):
            want = expected(messages, template, **options)
            assert render(messages, template, **options) == want, name
    assert expected([USER], template) is not None


@pytest.mark.parametrize("template", PARTS.values(), ids=PARTS)
def test_parts(render: Any, expected: Any, template: str) -> None:
    """Conversations of parts: media are placed where they are."""
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What? "}, {"type": "image"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "That."}]},
        {"role": "user", "content": [{"type": "text", "text": " And? "}]},
    ]
    media = [
        {**m, "content": [p | {"image": "a"} if p["type"] == "image" else p for p in m["content"]]} for m in messages
    ]
    got = render(media, template, add_generation_prompt=True)
    assert got == expected(messages, template, add_generation_prompt=True)
    assert got is not None


@pytest.mark.parametrize("name", ["Llama", "Qwen", "Mistral"])
def test_tool_calls(render: Any, expected: Any, name: str) -> None:
    """Arguments given as JSON text are the object that they say, and a tool's result is the text that it returned."""
    template = TEXT[name]
    want = expected(call({"city": "Köln", "days": [1, 2]}), template)
    assert want is not None
    assert '{"rain": "ja", "mm": 3.5}' in want.replace("\\", "")
    assert render(call({"city": "Köln", "days": [1, 2]}), template) == want
    assert render(call('{"city": "Köln", "days": [1, 2]}'), template) == want


def test_templates_that_take_arguments_as_text(render: Any, expected: Any) -> None:
    """Some join them to text; an object would be refused there."""
    arguments = '{"city": "Köln"}'
    assert expected(call(json.loads(arguments)), DEEPSEEK) is None
    assert render(call(arguments), DEEPSEEK) == expected(call(arguments), DEEPSEEK)
    assert render(call("not JSON"), DEEPSEEK) == expected(call("not JSON"), DEEPSEEK)


def test_template_arguments(render: Any, expected: Any) -> None:
    """They are the template's variables, and go before special tokens of the same name."""
    for template, variables in (
        (QWEN, {"enable_thinking": False}),
        (QWEN, {"enable_thinking": True}),
        (LLAMA, {"date_string": "1 May", "bos_token": ""}),
        (PARTS["Qwen-VL"], {"add_vision_id": True}),
        ("{{ documents | tojson }}", {"documents": [{"title": "t", "text": "x"}]}),
    ):
        want = expected([USER], template, add_generation_prompt=True, **variables)
        assert render([USER], template, add_generation_prompt=True, variables=variables) == want
        assert want is not None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('No ' + messages[0]['content']) }}", "conversation: No Hello$"),
        ("{% if %}", "Expected an expression"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
        ("{{ nothing.at_all }}", "'nothing' is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_refusals(tokenizer: Any, templates: TemplateRenderer, template: str, words: str) -> None:
    """The message of a template error reaches the caller."""
    guard = Guard(["Hello"])
    messages = normalize_messages([{"role": "user", "content": "Hello"}], Guards(guard, guard))
    with pytest.raises(PromptError, match=words):
        ChatRenderer(tokenizer, templates).render(messages, template, lambda *_: None, add_generation_prompt=True)


def test_mistrals_rule_for_ids(render: Any, expected: Any) -> None:
    """A refusal of the published template is one here."""
    messages = call({})
    messages[1]["tool_calls"][0]["id"] = "short"
    assert expected(messages, MISTRAL) is None
    assert render(messages, MISTRAL) is None
