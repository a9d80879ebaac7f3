"""Grammars of what requests ask for, in llguidance's notation.

Knows definitions, which are JSON texts of `StructuredOutputsParams`, and their bounds; knows no tokens. What a library
would leave out of a schema without a word is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from corellm.errors import InvalidParameterError
from corellm.structured_outputs import ReasoningParams

MAX_CHARACTERS = 1 << 18
"""Of a definition."""
MAX_DEPTH = 64
"""Of objects and lists in each other; the library takes 128."""
MAX_CHOICES = 10_000
"""Of `choice`, and of one `enum`."""
MAX_TAGS = 128

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Every spelling of a text is allowed, not only the one that the library would choose."""
_SPACE = r"[ \t]{0,2}|\r?\n[ \t]{0,24}"
"""Space between the parts of JSON. A model that knows no JSON would write as much of it as there may be."""
_SPACE_IN_TAGS = " ?"
_OF_SCHEMA = "start: %json "
_UNREAD = {
    "additionalItems": "use items with prefixItems",
    "disallow": "state the types that may be",
    "divisibleBy": "use multipleOf",
    "extends": "use allOf",
    "nullable": 'use "type": ["string", "null"], or anyOf',
    "x-guidance": "the form's own fields say how space is treated",
}
"""Keywords that the library takes without effect, or that change how it reads the rest."""
_SCHEMAS = frozenset({"additionalProperties", "items", "not", "contains", "propertyNames", "if", "then", "else"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def form_of(definition: str) -> str:
    """Return which form a definition states.

    Raises:
        InvalidParameterError: it is too long, or no definition.
    """
    if len(definition) > MAX_CHARACTERS:
        told = f"the form has {len(definition)} characters, {MAX_CHARACTERS} are allowed; shorten it"
        raise InvalidParameterError(f"structured_outputs: {told}", param="structured_outputs")
    return _read(definition)[0]


def parted(definition: str) -> tuple[str, ReasoningParams | None]:
    """Return a definition without the reasoning before the form, and that; it is empty if there is no form.

    Raises:
        InvalidParameterError: it is no definition.
    """
    if '"reasoning":' not in definition:
        return definition, None
    with _reading():
        stated = json.loads(definition)
        reasoning = stated.pop("reasoning", None)
        form = json.dumps(stated, separators=(",", ":")) if stated else ""
        return form, None if reasoning is None else ReasoningParams(**reasoning)


def wrong(form: str, told: str) -> InvalidParameterError:
    """Return the error of a form."""
    return InvalidParameterError(f"structured_outputs: {form}: {told}", param=f"structured_outputs.{form}")


def grammar_of(definition: str) -> str:
    """Return a definition's grammar.

    Raises:
        InvalidParameterError: the definition is wrong, or beyond bounds.
    """
    form, value, options = _read(definition)
    if _depth(value) > MAX_DEPTH:
        raise wrong(form, f"objects and lists are nested more than {MAX_DEPTH} deep; flatten it, or use $ref")
    return OPTIONS + _GRAMMARS[form](form, value, **options)


def _read(definition: str) -> tuple[str, Any, dict[str, Any]]:
    with _reading():
        options = json.loads(definition)
        form = next(name for name in options if name in _GRAMMARS)
        return form, options.pop(form), options


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, StopIteration, TypeError, AttributeError) as error:
        told = "the constraint's definition is not that of a StructuredOutputsParams, or nested too deep"
        raise InvalidParameterError(told, param="structured_outputs") from error


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [inner for outer in level for inner in _inner(outer)]:
        depth += 1
    return depth


def _inner(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _json(
    form: str,
    schema: Any,
    *,
    space: str = _SPACE,
    whitespace_pattern: str | None = None,
    disable_any_whitespace: bool = False,
) -> str:
    if not isinstance(schema, dict):
        raise wrong(form, "a schema is a JSON object")
    for part in _subschemas(schema):
        _check_keywords(form, part)
    spaces: dict[str, Any] = {"whitespace_pattern": space if whitespace_pattern is None else whitespace_pattern}
    if disable_any_whitespace:
        spaces = {"whitespace_flexible": False}
    return _OF_SCHEMA + json.dumps({**schema, "x-guidance": spaces})


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    for keyword, value in schema.items():
        inner: list[Any] = []
        if keyword in _MAPS and isinstance(value, dict):
            inner = list(value.values())
        elif keyword in _LISTS and isinstance(value, list):
            inner = value
        elif keyword in _SCHEMAS:
            inner = [value]
        for part in inner:
            if isinstance(part, dict):
                yield from _subschemas(part)


def _check_keywords(form: str, schema: Mapping[str, Any]) -> None:
    for keyword in schema.keys() & _UNREAD.keys():
        raise wrong(form, f"the keyword {keyword!r} is not supported; {_UNREAD[keyword]}")
    choices = schema.get("enum")
    if isinstance(choices, list) and len(choices) > MAX_CHOICES:
        raise wrong(form, f"an enum has {len(choices)} values, {MAX_CHOICES} are allowed")


def _json_object(form: str, _: Any, **options: Any) -> str:
    return _json(form, {"type": "object"}, **options)


def _regex(form: str, regex: str) -> str:
    stated = json.loads(LLMatcher.grammar_from_regex(regex))
    return str(stated["grammars"][0]["lark_grammar"])


def _choice(form: str, choices: list[str]) -> str:
    if len(choices) > MAX_CHOICES:
        raise wrong(form, f"there are {len(choices)} choices, {MAX_CHOICES} are allowed")
    stated = " | ".join(_quoted(choice) for choice in choices if choice)
    rule = "start: CHOICE |" if "" in choices else "start: CHOICE"
    return f"{rule}\nCHOICE: {stated}" if stated else 'start: ""'


def _grammar(form: str, grammar: str) -> str:
    if "%llguidance" in grammar:
        raise wrong(form, "a grammar has no options of the library; leave out %llguidance")
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # of a parser that raises what it likes
        raise wrong(form, f"it is neither Lark's notation nor GBNF: {error}") from error


def _structural_tag(form: str, stated: Mapping[str, Any]) -> str:
    if stated.keys() - {"type"} == {"format"}:
        return _separated_tags(form, stated["format"])
    if unknown := stated.keys() - {"type", "structures", "triggers"}:
        raise wrong(form, f"unknown key {min(unknown)!r}; a tag has structures (begin, schema, end) and triggers")
    triggers, structures = stated.get("triggers"), stated.get("structures")
    if not isinstance(triggers, list) or not isinstance(structures, list) or not structures:
        raise wrong(form, "triggers and structures must be lists that are not empty")
    _check_number(form, structures)
    tags = [_tag(form, structure, triggers) for structure in structures]
    grammar = StructTag.to_grammar(tags, assume_special=False)
    return re.sub("^%llguidance {}\n", "", str(grammar))


def _check_number(form: str, tags: list[Any]) -> None:
    if len(tags) > MAX_TAGS:
        raise wrong(form, f"there are {len(tags)} structures, {MAX_TAGS} are allowed")


def _tag(form: str, structure: Any, triggers: list[Any]) -> StructTag:
    if not isinstance(structure, dict) or structure.keys() != {"begin", "schema", "end"}:
        raise wrong(form, 'a structure is like {"begin": "<call>", "schema": {...}, "end": "</call>"}')
    begin, schema, end = structure["begin"], structure["schema"], structure["end"]
    if not isinstance(begin, str) or not isinstance(end, str):
        raise wrong(form, "begin and end must be strings")
    trigger = next((t for t in triggers if isinstance(t, str) and t and begin.startswith(t)), None)
    if trigger is None:
        raise wrong(form, f"no trigger is the start of {begin!r:.100}")
    spaced = json.loads(_json(form, schema, space=_SPACE_IN_TAGS).removeprefix(_OF_SCHEMA))
    return StructTag(trigger=trigger, begin=begin, grammar=spaced, end=end)


def _separated_tags(form: str, given: Any) -> str:
    """The grammar of tags alone, without text around them: `tags_with_separator` of XGrammar's structural tags."""
    like = {"type": "tags_with_separator", "tags": [], "separator": "", "at_least_one": True, "stop_after_first": True}
    if not isinstance(given, dict) or given.keys() != like.keys() or given["type"] != like["type"]:
        raise wrong(form, f"a format is like {json.dumps(like)}")
    tags, separator = given["tags"], given["separator"]
    if not isinstance(tags, list) or not tags or not isinstance(separator, str):
        raise wrong(form, "tags must be a list that is not empty, and separator a string")
    _check_number(form, tags)
    rules = [f"tag_{i}: {_separated_tag(form, tag, i)}" for i, tag in enumerate(tags)]
    several = "tag" if given["stop_after_first"] else f"tag ({_quoted(separator)} tag)*"
    start = several if given["at_least_one"] else f'"" | {several}'
    return "\n".join([f"start: {start}", f"tag: {' | '.join(f'tag_{i}' for i in range(len(tags)))}", *rules])


def _separated_tag(form: str, tag: Any, number: int) -> str:
    """A tag's rule, and that of its content."""
    content = tag.get("content") if isinstance(tag, dict) else None
    is_right = (
        isinstance(content, dict)
        and tag.keys() == {"type", "begin", "content", "end"}
        and tag["type"] == "tag"
        and all(isinstance(tag[name], str) for name in ("begin", "end"))
        and content.keys() == {"type", "json_schema"}
        and content["type"] == "json_schema"
    )
    if not is_right or content is None:
        told = '{"type": "tag", "begin": "", "content": {"type": "json_schema", "json_schema": {}}, "end": ""}'
        raise wrong(form, f"a tag is like {told}")
    schema = _json(form, content["json_schema"], space=_SPACE_IN_TAGS).removeprefix(_OF_SCHEMA)
    return f"{_quoted(tag['begin'])} content_{number} {_quoted(tag['end'])}\ncontent_{number}: %json {schema}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_GRAMMARS: Mapping[str, Callable[..., str]] = {
    "json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _json_object,
    "structural_tag": _structural_tag,
}  # fmt: skip
