"""Parsers of tool calls: the published forms, every cut, and broken outputs, of which no character is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm.errors import ContractError
from corellm.hookspecs import hookimpl
from corellm.plugin.extensions import load_extensions
from corellm_server.parsing.names import TOOLS as KIND
from corellm_server.parsing.names import Parsers, _offered
from corellm_server.parsing.pieces import CallArguments
from corellm_server.tools import pythonic
from extensions.server.tests.parsing.forms import FORMS, TOOLS, found, read, source_of

PARSERS: dict[str, Any] = _offered(KIND)
CASES = [(name, form) for name, forms in FORMS.items() for form in forms]
PIECES = sorted(
    {marker for parser in PARSERS.values() for marker in parser.MARKERS}
    | {"</tool_call>", "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_value>", "[ARGS]", "```json",
       '{"name": "now", "arguments": ', '"', "\\", "\\u12", "{", "}", "[", "]", "(", ")", "'", ",", ":", ";", "\n", " ",
       "now", "weather(", "city", "=", ">", "1e", "null", "\x01", "é", "\U0001f600"}
)  # fmt: skip


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_published_form(name: str, form: str) -> None:
    """Text and calls are found, and every character belongs to a piece."""
    output, text, calls = FORMS[name][form]
    pieces = read(PARSERS[name](TOOLS), [output])
    got_text, _, got = found(pieces)
    assert [(called, json.loads(arguments)) for called, arguments in got] == calls
    assert got_text == text
    assert source_of(pieces) == output


@pytest.mark.parametrize(("name", "form"), CASES)
def test_every_cut(name: str, form: str) -> None:
    """In two pieces cut anywhere, or character by character, the same is found."""
    output, make = FORMS[name][form][0], PARSERS[name]
    want = found(read(make(TOOLS), [output]))
    assert found(read(make(TOOLS), list(output))) == want
    for cut in range(len(output)):
        assert found(read(make(TOOLS), [output[:cut], output[cut:]])) == want


def test_arguments_come_while_they_are_written() -> None:
    """The name is known before the arguments, and a long argument is not held back."""
    for name, before in (("hermes", '<tool_call>{"name": "now", "arguments": {"city": "'),
                         ("qwen3_coder", "<function=weather><parameter=city>")):  # fmt: skip
        parser = PARSERS[name](TOOLS)
        parser.feed(before + "x")
        assert source_of(parser.feed("y" * 1000)) == "y" * 1000


@st.composite
def broken(draw: st.DrawFn, outputs: list[str]) -> str:
    """An output, some pieces of which were lost, doubled or replaced."""
    text = draw(st.sampled_from(outputs))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        new = draw(st.one_of(st.just(""), st.just(text[start:end] * 2), st.sampled_from(PIECES)))
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_of_broken_outputs(name: str, data: st.DataObject) -> None:
    """Every character is of a piece, arguments are JSON or its beginning, and any cut gives the same."""
    output = data.draw(broken([one[0] for one in FORMS[name].values()]))
    pieces = read(PARSERS[name](TOOLS), [output])
    assert source_of(pieces) == output
    want = found(pieces)
    assert found(read(PARSERS[name](TOOLS), list(output))) == want
    cut = data.draw(st.integers(0, len(output)))
    assert found(read(PARSERS[name](TOOLS), [output[:cut], output[cut:]])) == want


def test_deep_and_long_outputs_are_text() -> None:
    """Nesting beyond any call's, brackets and quotes without an end."""
    for name, text in (
        ("hermes", '<tool_call>{"name": "now", "arguments": ' + '{"a": ' * 5000),
        ("hermes", '<tool_call>{"name": "now", "arguments": "' + "[" * 5000 + '"}'),
        ("pythonic", "[now(a=" + "[" * 5000), ("pythonic", "[now(a=" + "-" * 5000 + "1)]"),
        ("pythonic", "[now(a='" + "x" * 100_000 + "')]"), ("mistral", "[TOOL_CALLS]" * 2000),
        ("hermes", "<tool_call>" * 2000 + " " * 10_000), ("qwen3_coder", "<tool_call>" + "\n" * 10_000),
    ):  # fmt: skip
        pieces = read(PARSERS[name](TOOLS), [text])
        assert source_of(pieces) == text
        assert all(not arguments or arguments.startswith("{") for _, arguments in found(pieces)[2])


def test_lists_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many beginnings of a list in one output take as many steps as it has characters, not their square."""
    steps = 0

    def counted(brackets: Any, character: str) -> None:
        nonlocal steps
        steps += 1
        take(brackets, character)

    take = pythonic._Brackets._take
    monkeypatch.setattr(pythonic._Brackets, "_take", counted)
    monkeypatch.setattr(pythonic, "_MOST", 1000)
    text = '<|python_start|>[f(\\"' * 500
    assert source_of(read(PARSERS["pythonic"](TOOLS), [text])) == text
    assert 0 < steps < len(text)


@pytest.mark.parametrize(
    ("name", "begun", "value", "end"),
    [
        ("qwen3_coder", "<function=weather><parameter=at>", "</parameter>\n,", "</parameter></function>"),
        ("glm", "<tool_call>weather<arg_key>at</arg_key><arg_value>", "1</arg_value>,", "</arg_value></tool_call>"),
        ("hermes", '<tool_call>{"arguments": {"at": "', "abcdefgh", '"}, "name": "weather"}</tool_call>'),
    ],
)
def test_a_value_that_comes_as_a_whole(name: str, begun: str, value: str, end: str) -> None:
    """Read in small pieces, as many characters are held to be searched and moved as it has, not their square."""
    value *= 2000
    parser, held, pieces = PARSERS[name](TOOLS), 0, []
    text = begun + value + end
    for start in range(0, len(text), 4):
        pieces += parser.feed(text[start : start + 4])
        held += len(parser.reader._text)
    ((_, arguments),) = found([*pieces, *parser.finish()])[2]
    assert json.loads(arguments)["at"] == value.strip()
    assert len(text) / 4 < held < 20 * len(text)


@pytest.mark.parametrize("value", ["1e999", '{"a": "\\ud800"}', '["\\udc00"]'])
def test_values_that_json_has_not(value: str) -> None:
    """A number without an end, or half a character, is the text that the model wrote."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}}}
    pieces = read(PARSERS["qwen3_coder"]([tool]), [f"<function=f><parameter=a>{value}</parameter></function>"])
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    assert json.loads(arguments.encode()) == {"a": value}


class Offer:
    """An extension that offers a form."""

    def __init__(self, name: str, location: str) -> None:
        self.name, self.location = name, location

    @hookimpl
    def register_tool_parsers(self) -> dict[str, str]:
        """Return the form."""
        return {self.name: self.location}


@contextmanager
def installed(name: str, location: str) -> Iterator[None]:
    """An extension is there."""
    offer = Offer(name, location)
    load_extensions().register(offer, name="the extension 'x' of strangers")
    try:
        yield
    finally:
        load_extensions().unregister(offer)


def test_a_form_of_an_extension() -> None:
    """It is chosen by its name, by an adapter's attribute or by a template; a wrong one names its extension."""
    own = "corellm_server.tools.objects:HermesCalls"
    with installed("mine", own):
        assert Parsers(KIND, "mine").of(None) is PARSERS["hermes"]
        assert Parsers(KIND, None, "mine").of("[TOOL_CALLS]") is PARSERS["hermes"]
        assert Parsers(KIND, "mistral", "mine").of(None) is PARSERS["mistral"]
        assert Parsers(KIND, "none", "mine").of("[TOOL_CALLS]") is None
    with pytest.raises(ContractError, match="the adapter's tool_call_parser: there is no parser 'mine'"):
        Parsers(KIND, None, "mine")
    for name, location, told in (
        ("hermes", own, "both have a parser 'hermes'"), ("none", own, "both have a parser 'none'"),
        ("mine", "json:nothing", "cannot be imported"), ("mine", "json:JSONDecoder", "no subclass of"),
        ("mine", "corellm_server.tools.calls:ToolParser", "must have MARKERS"),
    ):  # fmt: skip
        with installed(name, location), pytest.raises(ContractError, match=told) as caught:
            Parsers(KIND)
        assert "strangers" in str(caught.value)


def test_a_template_shows_the_form() -> None:
    """Of several whose parts a template has, the one with most; none where nothing is known."""
    parsers = Parsers(KIND)
    shown = {
        "hermes": "{{ '<tool_call>' }}", "glm": "<tool_call>{{ '<arg_key>' }}", "mistral": "[TOOL_CALLS]",
        "qwen3_coder": "<tool_call><function=<parameter=", "deepseek": "<｜tool▁call▁begin｜>",
        "llama3_json": """'<|start_header_id|>' '{"name": "' + n + '", "parameters": '""",
        "pythonic": "<|python_start|>",
    }  # fmt: skip
    assert {name: parsers.of(template) for name, template in shown.items()} == PARSERS
    assert parsers.of("{{ messages }}") is None
    assert parsers.of(None) is None
