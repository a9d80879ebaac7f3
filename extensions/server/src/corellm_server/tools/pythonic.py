"""Calls as a list in Python, `[f(a=1), g(b="x")]`: read as literals, never run."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from corellm_server.parsing.reader import SPACES, BrokenFormError, Reading
from corellm_server.tools.calls import ToolParser, read_value

_MOST = 1 << 16
_MAX_DEPTH = 48


class PythonicCalls(ToolParser):
    """`[f(a=1)]` from the output's first character, or behind `<|python_start|>`, as of Llama 4 and its like.

    Without the marker, only a list of calls of the request's tools is one. Calls are yielded once their list is whole.
    Arguments may also be one JSON object, `[f(**{"a": 1})]`, as outputs that are held to schemas have them.
    """

    MARKERS = ("<|python_start|>",)
    TEMPLATE = ("<|python_start|>",)
    WRITTEN = ("[", "(**", ")]")

    def read(self) -> Reading[None]:
        """Read calls without a marker, then text and calls with one."""
        before = -1
        while before < self.num_calls:
            before = self.num_calls
            yield from self.reader.spaces()
            if (yield from self.reader.peek()) == "[":
                yield from self.attempt(self._list(only_known=True))
            else:
                self.reader.go_back(0)
        yield from super().read()

    def calls(self, marker: str) -> Reading[None]:
        """Read the list behind a marker."""
        yield from self._list(only_known=False)

    def _list(self, *, only_known: bool) -> Reading[None]:
        yield from self.reader.spaces()
        before = self.reader.num_pending
        yield from self.reader.expect("[")
        yield from self.reader.spaces()
        name = yield from self.reader.word(".")
        if not name or (only_known and name not in self.functions):
            raise BrokenFormError
        yield from self.reader.expect("(")
        scanner = _Brackets()
        while not scanner.is_complete:
            yield from self.reader.scan(scanner)
            if scanner.is_broken or self.reader.num_pending > _MOST:
                raise BrokenFormError
        calls = _calls_of(self.reader.pending[before:])
        if only_known and not {name for name, _ in calls} <= self.functions.keys():
            raise BrokenFormError
        yield from self.reader.spaces()
        yield from self.reader.starts_with("<|python_end|>")
        for name, arguments in calls:
            yield self.start(name)
            yield self.arguments(arguments)


class _Brackets:
    """Goes through Python behind `[f(` to the end of the list."""

    def __init__(self) -> None:
        self.is_complete = self.is_broken = False
        self._expected = ["]", ")"]
        self._quote = ""
        self._is_escaped = False

    def scan(self, text: str, start: int) -> tuple[int, str]:
        """Go on to the list's end."""
        for position in range(start, min(len(text), start + _MOST)):
            self._take(text[position])
            if self.is_complete or self.is_broken:
                return position + 1, ""
        return min(len(text), start + _MOST), ""

    def _take(self, character: str) -> None:
        if self._quote:
            is_escaped, self._is_escaped = self._is_escaped, False
            if is_escaped:
                return
            self._is_escaped = character == "\\"
            self._quote = "" if character == self._quote else self._quote
        elif character in "\"'":
            self._quote = character
        elif character == "\\":
            self.is_broken = True  # else a list at each of many markers would go on to the end of the output
        elif character in "([{":
            self._expected.append({"(": ")", "[": "]", "{": "}"}[character])
            self.is_broken = len(self._expected) > _MAX_DEPTH
        elif character in ")]}":
            self.is_broken = self._expected.pop() != character
            self.is_complete = not self._expected and not self.is_broken


def _calls_of(source: str) -> list[tuple[str, str]]:
    """The names of the calls in a list, and their arguments as JSON.

    Raises:
        BrokenFormError: it is no list of calls whose arguments are literals with names.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(source.strip(SPACES), mode="eval").body
        if not isinstance(tree, ast.List):
            raise BrokenFormError
        return [_call_of(source.strip(SPACES), node) for node in tree.elts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise BrokenFormError from None


def _call_of(source: str, node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise BrokenFormError
    arguments: dict[str, Any] = {}
    for one in node.keywords:
        if one.arg is None:
            held = read_value(ast.get_source_segment(source, one.value) or "")
            if not isinstance(held, dict):
                raise BrokenFormError
            arguments |= held
        else:
            arguments[one.arg] = ast.literal_eval(one.value)
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # a lone surrogate is no text
    return ast.unparse(node.func), text
