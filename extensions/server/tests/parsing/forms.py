"""Outputs as families publish them, and what is in them."""

from __future__ import annotations

import json
from typing import Any

from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning, Text


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool as OpenAI has it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [
    function("weather", city={"type": "string"}, days={"type": "integer"}, at={"type": "object"}),
    function("now"),
]
CITY = 'Zoë "Q" \\ <b>\nof [it]'
WEATHER = {"city": CITY, "days": 3, "at": {"x": [1.5, None, True]}}
NOW: dict[str, Any] = {}
JSON, WEATHER_JSON = '{"city": "Paris"}', json.dumps(WEATHER)
PARIS = {"city": "Paris"}
TWO = [("weather", WEATHER), ("now", NOW)]
_CALL = "<｜tool▁call▁begin｜>"
_END = "<｜tool▁call▁end｜>"

FORMS: dict[str, dict[str, tuple[str, str, list[Any]]]] = {
    "hermes": {
        "Qwen": (
            f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {WEATHER_JSON}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            "Let me see.", TWO,
        ),
        "text after a call": (
            f'<tool_call>{{"arguments": {JSON}, "name": "weather"}}</tool_call>\nThat was it.', "That was it.",
            [("weather", PARIS)],
        ),
        "no arguments": ('<tool_call>{"name": "now"}</tool_call>', "", [("now", NOW)]),
        "arguments as text": (
            '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "",
            [("weather", PARIS)],
        ),
        "line breaks and backslashes in a string": (
            '<tool_call>{"name": "weather", "arguments": {"city": "a\nb\\d"}}</tool_call>', "",
            [("weather", {"city": "a\nb\\d"})],
        ),
        "halves of characters": (
            '<tool_call>{"name": "weather", '
            '"arguments": {"city": "\\ud83d\\ude00\\ud800x\\ud800\\n\\udc00\\ud800"}}', "",
            [("weather", {"city": "\U0001f600\ufffdx\ufffd\n\ufffd\ufffd"})],
        ),
        "no end": (f'<tool_call>\n{{"name": "weather", "arguments": {JSON}}}', "", [("weather", PARIS)]),
        "no last brace": (
            f'<tool_call>\n{{"name": "weather", "arguments": {JSON}\n</tool_call>\nThere. '
            '<tool_call>{"arguments": {}, "name": "now"</tool_call>',
            "There.", [("weather", PARIS), ("now", NOW)],
        ),
        "broken, then whole": (
            f'<tool_call>{{name}} <tool_call>{{"name": "weather", "arguments": {JSON}}}</tool_call>',
            "<tool_call>{name}", [("weather", PARIS)],
        ),
    },
    "qwen3_coder": {
        "Qwen3-Coder": (
            f"I look.\n<tool_call>\n<function=weather>\n<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n"
            '</parameter>\n<parameter=at>\n{"x": [1.5, null, true]}\n</parameter>\n</function>\n</tool_call>\n'
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            "I look.", TWO,
        ),
        "no block": ("<function=weather><parameter=city>Paris</parameter></function>", "", [("weather", PARIS)]),
        "a value with the tag that ends values": (
            f"<tool_call>\n<function=weather>\n<parameter=city>\nA</parameter> {CITY}\n</parameter>\n</parameter>\n"
            '<parameter=at>\n{"x": "</parameter>"}\n</parameter>\n</function>\n</tool_call>',
            "", [("weather", {"city": f"A</parameter> {CITY}\n</parameter>", "at": {"x": "</parameter>"}})],
        ),
        "a tool that is not known": (
            "<function=f><parameter=a>1</parameter></function> So.", "So.", [("f", {"a": "1"})]
        ),
    },
    "llama3_json": {
        "Llama 3.1": (f'{{"name": "weather", "parameters": {WEATHER_JSON}}}', "", TWO[:1]),
        "with a tag, two": (
            f'<|python_tag|>{{"name": "weather", "parameters": {JSON}}}; {{"name": "now", "parameters": {{}}}}', "",
            [("weather", PARIS), ("now", NOW)],
        ),
        "text that is JSON": ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        "text before a tag": (
            f'Hm. <|python_tag|>{{"name": "weather", "parameters": {JSON}}}', "Hm.", [("weather", PARIS)]
        ),
    },
    "mistral": {
        "a list": (
            f'[TOOL_CALLS] [{{"name": "weather", "arguments": {WEATHER_JSON}, "id": "abcdefghi"}}, '
            '{"name": "now", "arguments": {}}]',
            "", TWO,
        ),
        "names": (f"Yes.[TOOL_CALLS]weather[ARGS]{WEATHER_JSON}[TOOL_CALLS]now[ARGS]{{}}", "Yes.", TWO),
        "names with ids": (f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{JSON}", "", [("weather", PARIS)]),
        "names without marks": (f"[TOOL_CALLS]weather{JSON}", "", [("weather", PARIS)]),
    },
    "pythonic": {
        "Llama 4": (
            f"<|python_start|>[weather(city={CITY!r}, days=3, at={{'x': [1.5, None, True]}}), now()]<|python_end|>", "",
            TWO,
        ),
        "from the start": ('[weather(city="Paris")]', "", [("weather", PARIS)]),
        "text that is a list": ("[1, 2] and [weather(city='x')]", "[1, 2] and [weather(city='x')]", []),
        "no literal": ("[weather(city=open('x'))]", "[weather(city=open('x'))]", []),
    },
    "deepseek": {
        "V3 and R1": (
            f"Fine.<｜tool▁calls▁begin｜>{_CALL}function<｜tool▁sep｜>weather\n```json\n{WEATHER_JSON}\n```{_END}\n"
            f"{_CALL}function<｜tool▁sep｜>now\n```json\n{{}}\n```{_END}<｜tool▁calls▁end｜>",
            "Fine.", TWO,
        ),
        "V3.1": (
            f"<｜tool▁calls▁begin｜>{_CALL}weather<｜tool▁sep｜>{WEATHER_JSON}{_END}{_CALL}now<｜tool▁sep｜>{{}}{_END}"
            "<｜tool▁calls▁end｜>",
            "", TWO,
        ),
    },
    "glm": {
        "GLM 4.5": (
            f"\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n"
            '<arg_value>3</arg_value>\n<arg_key>at</arg_key>\n<arg_value>{"x": [1.5, null, true]}</arg_value>\n'
            "</tool_call>\n<tool_call>now\n</tool_call>",
            "", TWO,
        ),
        "a value with the tag that ends values": (
            "<tool_call>weather<arg_key>city</arg_key><arg_value></arg_value> A</arg_value></tool_call>", "",
            [("weather", {"city": "</arg_value> A"})],
        ),
    },
}  # fmt: skip
"""`{parser: {form: (output, text, calls)}}`."""


def read(parser: Any, pieces: list[str]) -> list[Piece]:
    """What a parser makes of an output that comes in pieces."""
    return [*(one for text in pieces for one in parser.feed(text)), *parser.finish()]


def found(pieces: list[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """The text, the reasoning, and the calls, their arguments as text."""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallStart):
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
    texts = ["".join(one.source for one in pieces if type(one) is kind) for kind in (Text, Reasoning)]
    return texts[0], texts[1], calls


def source_of(pieces: list[Piece]) -> str:
    """All that pieces are made of."""
    return "".join(piece.source for piece in pieces)
