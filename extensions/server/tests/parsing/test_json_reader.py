"""Arguments of calls while they are read: JSON or its beginning, whatever comes. The oracle is pydantic's parser."""

from __future__ import annotations

import pytest
from pydantic_core import from_json

from corellm_server.tools.objects import HermesCalls
from extensions.server.tests.parsing.forms import TOOLS, found, read, source_of


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("x", ""), ("tru1", "tru"), ("nulll", "null"), ("01", "0"), ("1.", "1."), ("1.5e", "1.5e"), ("-", "-"),
        ("1e5e", "1e5"), ("--1", "-"), ("+1", ""), ("1" * 500, "1" * 400), ("True", ""), ('{"b": fals_', '{"b": fals'),
    ],
)  # fmt: skip
def test_a_broken_scalar_ends_the_arguments(written: str, taken: str) -> None:
    """Before the character that breaks it, which is text; wherever it is cut."""
    output = f'<tool_call>{{"name": "now", "arguments": {{"a": {written}}}}}</tool_call>'
    for pieces in ([output], list(output), [output[:45], output[45:]]):
        got = read(HermesCalls(TOOLS), pieces)
        text, _, ((_, arguments),) = found(got)
        assert arguments == f'{{"a": {taken}'
        assert isinstance(from_json(arguments, allow_partial=True), dict)
        assert source_of(got) == output
        assert output.endswith(text)
        assert len(output) - len(text) == output.index(written) + len(taken)


@pytest.mark.parametrize("value", ["0", "-0.5", "1e5", "1.25E-3", "true", "false", "null", "[1,true]"])
def test_a_scalar(value: str) -> None:
    output = f'<tool_call>{{"name": "now", "arguments": {{"a": {value}}}}}</tool_call>'
    for pieces in ([output], list(output)):
        assert found(read(HermesCalls(TOOLS), pieces)) == ("", "", [("now", f'{{"a": {value}}}')])
