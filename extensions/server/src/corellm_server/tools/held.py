"""Calls that a model is held to: the form of an output that must be calls, or whose calls must keep to their schemas.

Knows how forms write calls and what a request asks for; knows no grammar.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corellm import StructuredOutputsParams
from corellm_server.tools.calls import ToolParser


def calls_alone(
    parser: type[ToolParser],
    tools: Sequence[Mapping[str, Any]],
    *,
    one_call: bool,
    or_schema: Mapping[str, Any] | None = None,
    special: Sequence[str] = (),
) -> StructuredOutputsParams:
    """The form of an output that is calls of these tools and nothing else, or JSON of a schema.

    Args:
        parser: of a form whose arguments are JSON.
        tools: one of which is called.
        one_call: whether only one call may come.
        or_schema: of an output that is no call; None if there must be one.
        special: those of the strings that calls are written with which are special tokens.
    """
    alone: dict[str, Any] = {
        "type": "tags_with_separator", "tags": _tags(parser, tools), "separator": parser.SEPARATOR,
        "at_least_one": True, "stop_after_first": one_call, "tokens": [*special],
    }  # fmt: skip
    if or_schema is not None:
        alone = {"type": "or", "elements": [alone, {"type": "json_schema", "json_schema": or_schema}]}
    return StructuredOutputsParams(structural_tag={"format": alone})


def calls_in_text(
    parser: type[ToolParser], tools: Sequence[Mapping[str, Any]], special: Sequence[str] = ()
) -> StructuredOutputsParams:
    """The form of an output that is text, in which every call of these tools has arguments of its schema.

    Calls without a marker are the whole output; then no text begins as one.

    Args:
        parser: of a form whose arguments are JSON.
        tools: that may be called.
        special: those of the strings that mark calls and reasoning which are special tokens.
    """
    if has_marker(parser):
        trigger, *excludes = parser.MARKERS
        among = {
            "type": "text_with_tags", "tags": _tags(parser, tools), "trigger": trigger, "excludes": excludes,
            "tokens": [*special],
        }  # fmt: skip
        return StructuredOutputsParams(structural_tag={"format": among})
    assert parser.WRITTEN is not None
    text = {"type": "any_text", "excludes": [*parser.MARKERS], "not_begun": [parser.WRITTEN[0][0]]}
    (calls,) = calls_alone(parser, tools, one_call=False).structural_tag.values()
    return StructuredOutputsParams(structural_tag={"format": {"type": "or", "elements": [calls, text]}})


def arguments_alone(schema: Mapping[str, Any]) -> StructuredOutputsParams:
    """The form of the arguments of a call."""
    return StructuredOutputsParams(json=closed(schema))


def has_marker(parser: type[ToolParser]) -> bool:
    """Whether calls begin with a marker, in a form whose arguments are JSON."""
    return parser.WRITTEN is not None and parser.WRITTEN[0].startswith(parser.MARKERS[0])


def _tags(parser: type[ToolParser], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each tool's call: what it begins with, the schema of its arguments, and what it ends with."""
    assert parser.WRITTEN is not None
    before, between, end = parser.WRITTEN
    return [
        {
            "type": "tag", "begin": before + one["name"] + between, "end": end,
            "content": {"type": "json_schema", "json_schema": closed(one["parameters"])},
        }
        for one in (tool["function"] for tool in tools)
    ]  # fmt: skip


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema whose objects have the properties that it names, and no others, unless it says that there are others.

    A model may otherwise add arguments that no function has, and never come to an end. A schema that is put together of
    several (`allOf`, or `anyOf` beside properties) stays as it is: each part would exclude the others' properties.
    """
    try:
        copied = copy.deepcopy(dict(schema))
        parts = [*_parts(copied)]
    except RecursionError:  # the check of the form refuses it
        return schema
    if any(_is_composed(part) for part in parts):
        return schema
    for part in parts:
        if _names_all(part):
            part["additionalProperties"] = False
    return copied


_OPENING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_COMPOSING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if"})
_OF_ONE = frozenset(
    {
        "additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items", "not", "oneOf", "prefixItems",
        "propertyNames", "then",
    }
)  # fmt: skip
"""Keywords of a schema, or of a list of them."""
_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})


def _is_composed(part: Mapping[str, Any]) -> bool:
    parts = part.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or ("properties" in part and bool(_COMPOSING & part.keys()))


def _names_all(part: Mapping[str, Any]) -> bool:
    """Whether a schema names an object's properties and leaves open whether there are others; not if malformed."""
    named, required = part.get("properties"), part.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list) or _OPENING & part.keys():
        return False
    return all(isinstance(name, str) and name in named for name in required)


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all within it; properties of such names, and values of `const` and `enum`, are none."""
    yield schema
    for keyword, value in schema.items():
        inner = [value] if keyword in _OF_ONE else []
        if keyword in _OF_ONE and isinstance(value, list):
            inner = value
        elif keyword in _BY_NAME and isinstance(value, dict):
            inner = [*value.values()]
        for one in inner:
            if isinstance(one, dict):
                yield from _parts(one)
