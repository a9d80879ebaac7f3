"""Forms in which each argument has tags of its own: of Qwen3-Coder and GLM.

A value is plain text; which JSON it means is said by the tool's schema.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from corellm_server.parsing.pieces import CallArguments
from corellm_server.parsing.reader import BrokenFormError, Reading
from corellm_server.tools.calls import ToolParser, read_value

_MOST_OF_KEY = 256
_MOST_OF_VALUE = 1 << 22
_PYTHON = {"True": True, "False": False, "None": None}
_UNSAID = frozenset({"$ref", "allOf", "enum", "const"})
"""Keywords that say of a schema without types what values are."""


class _TaggedCalls(ToolParser):
    """A call whose arguments have tags."""

    KEY: ClassVar[str]
    KEY_END: ClassVar[str]
    VALUE: ClassVar[str] = ""
    VALUE_END: ClassVar[str]
    """Ends a value where a key or an end follows; elsewhere it is the value's own."""
    END: ClassVar[str]
    OTHER_ENDS: ClassVar[tuple[str, ...]] = ()
    """What also follows a value, of a call whose end is missing."""

    def arguments_of(self, name: str) -> Reading[None]:
        """Yield a call whose arguments come next."""
        yield from self.reader.spaces()
        if (yield from self.reader.expect(self.KEY, self.END)) == self.END:
            yield self.start(name)
            yield self.arguments("{}")
            return
        yield self.start(name)
        opening = "{"
        while True:
            key = (yield from self.reader.before(self.KEY_END, _MOST_OF_KEY)).strip()
            if self.VALUE:
                yield from self.reader.spaces()
                yield from self.reader.expect(self.VALUE)
            yield from self._value(f"{opening}{json.dumps(key, ensure_ascii=False)}: ", self._schema(name, key))
            opening = ", "
            yield from self.reader.spaces()
            if (yield from self.reader.expect(self.KEY, self.END)) == self.END:
                break
        yield self.arguments("}")

    def _value(self, before: str, schema: Mapping[str, Any]) -> Reading[None]:
        """Yield a value: text while it is read, anything else as a whole."""
        types = _types_of(schema)
        yield from self.reader.starts_with("\n")
        if types != {"string"}:
            value = yield from self._whole_value()
            yield self.arguments(before + _converted(value.strip(), types))
            return
        yield self.arguments(before + '"')
        index = self.num_calls - 1
        ends = (f"\n{self.VALUE_END}", self.VALUE_END)
        while True:
            if not (yield from self.reader.until(ends, lambda source: _quoted(source, index), trims=False)):
                raise BrokenFormError
            if (yield from self._is_end()):
                break
            yield _quoted(self.reader.take(), index)
        yield self.arguments('"')

    def _whole_value(self) -> Reading[str]:
        """Read a value, and the tag that ends it."""
        read = list[str]()
        left = _MOST_OF_VALUE
        while True:
            read.append((yield from self.reader.before(self.VALUE_END, left)))
            if (yield from self._is_end()):
                return self.VALUE_END.join(read)
            left = max(0, left - len(read[-1]) - len(self.VALUE_END))

    def _is_end(self) -> Reading[bool]:
        """Whether the tag that was read ends its value: what may follow one does, or the output has ended."""
        length = self.reader.num_pending
        yield from self.reader.spaces()
        is_followed = bool((yield from self.reader.starts_with(self.KEY, self.END, *self.OTHER_ENDS)))
        self.reader.go_back(length)
        return is_followed or self.reader.has_ended

    def _schema(self, name: str, key: str) -> Mapping[str, Any]:
        """What a tool says of an argument; nothing if it does not."""
        properties = self.functions.get(name, {}).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else {}


class QwenCoderCalls(_TaggedCalls):
    """`<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`, as of Qwen3-Coder."""

    MARKERS = ("<tool_call>", "<function=")
    TEMPLATE = ("<tool_call>", "<function=", "<parameter=")
    KEY, KEY_END, VALUE_END, END = "<parameter=", ">", "</parameter>", "</function>"
    OTHER_ENDS = ("</tool_call>",)

    def calls(self, marker: str) -> Reading[None]:
        """Read one call; the tags around it may be missing."""
        if marker == self.MARKERS[0]:
            yield from self.reader.spaces()
            yield from self.reader.expect(self.MARKERS[1])
        name = yield from self.reader.before(">", _MOST_OF_KEY)
        yield from self.arguments_of(name.strip())
        yield from self.reader.spaces()
        yield from self.reader.starts_with("</tool_call>")


class GlmCalls(_TaggedCalls):
    """`<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`, as of GLM."""

    MARKERS = ("<tool_call>",)
    TEMPLATE = ("<tool_call>", "<arg_key>")
    KEY, KEY_END, END = "<arg_key>", "</arg_key>", "</tool_call>"
    VALUE, VALUE_END = "<arg_value>", "</arg_value>"

    def calls(self, marker: str) -> Reading[None]:
        """Read one call."""
        yield from self.reader.spaces()
        name = yield from self.reader.word(".-")
        yield from self.arguments_of(name)


def _quoted(source: str, index: int) -> CallArguments:
    return CallArguments(source, index, json.dumps(source, ensure_ascii=False)[1:-1])


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows: text if it says nothing at all, none if they are not plain to see."""
    choices = [one for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list) for one in schema[key]]
    found: set[str] = set()
    for one in [schema, *choices]:
        types = one.get("type") if isinstance(one, Mapping) else None
        found |= {kind for kind in (types if isinstance(types, list) else [types]) if isinstance(kind, str)}
    return found or ({"string"} if not choices and not _UNSAID & schema.keys() else set())


def _converted(text: str, types: set[str]) -> str:
    """A value of one of some types as JSON; text where it is none."""
    value: Any = text
    if "string" not in types or text in ("null", "None"):
        with contextlib.suppress(BrokenFormError):
            value = _PYTHON[text] if text in _PYTHON else read_value(text)
    try:
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        made.encode()
    except ValueError:  # JSON has no such number, or UTF-8 no such character
        return json.dumps(text, ensure_ascii=False)
    return made
