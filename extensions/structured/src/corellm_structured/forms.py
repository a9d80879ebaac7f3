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
        rules: list[str] = []
        start = _of_format(form, stated["format"], rules)
        return "\n".join([f"start: {start}", *rules])
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


def special_name(token: str) -> str:
    """Return the library's name of a special token, which no other text of a grammar has."""
    return f"<special_{token.encode(errors='surrogatepass').hex()}>"


SPECIAL_NAME = re.compile("<special_[0-9a-f]+>")


def _of_format(form: str, given: Any, rules: list[str]) -> str:
    """What a format of a structural tag allows: an expression, and rules of its own."""
    kind = given.get("type") if isinstance(given, dict) else None
    keys, make = _FORMATS.get(kind if isinstance(kind, str) else "", ((), None))
    may = {"type", *keys, *(["tokens"] if "tags" in keys else [])}
    if make is None or not {"type", *keys} <= given.keys() <= may:
        like = {kind: sorted(keys) for kind, (keys, _) in _FORMATS.items()}
        raise wrong(form, f"a format is like one of these, types with their fields: {json.dumps(like)}")
    return make(form, given, rules)


def _separated_tags(form: str, given: Mapping[str, Any], rules: list[str]) -> str:
    """Tags alone, without text around them: `tags_with_separator` of XGrammar's structural tags."""
    tag, separator = _one_of_tags(form, given, rules), given["separator"]
    if not isinstance(separator, str):
        raise wrong(form, "separator must be a string")
    several = tag if given["stop_after_first"] else f"{tag} ({_quoted(separator)} {tag})*"
    return several if given["at_least_one"] else f'("" | {several})'


def _text_with_tags(form: str, given: Mapping[str, Any], rules: list[str]) -> str:
    """Text without some strings, in which one of the tags is behind every trigger; special tokens may stand between."""
    trigger, tokens = given["trigger"], _strings(form, "tokens", given.get("tokens", []))
    excludes = _strings(form, "excludes", given["excludes"])
    if not isinstance(trigger, str) or not trigger:
        raise wrong(form, "trigger must be a string that is not empty")
    tag, text = _one_of_tags(form, given, rules, behind=trigger), _text(form, [trigger, *excludes], [], rules)
    if trigger in tokens:
        begin = f"{text}? {special_name(trigger)}"
    else:
        before = _text(form, excludes, [], rules)
        begin = f"trigger_{len(rules)}"
        rules.append(f"{begin}[lazy]: {before}? {_quoted(trigger)}")
    alone = [f"{text}? {special_name(token)}" for token in tokens if token != trigger]
    return f"({' | '.join([f'{begin} {tag}', *alone])})* {text}?"


def _any_text(form: str, given: Mapping[str, Any], rules: list[str]) -> str:
    """Text without some strings, that does not begin with others, but for space before them."""
    excludes, beginnings = (_strings(form, name, given[name]) for name in ("excludes", "not_begun"))
    return f"{_text(form, excludes, beginnings, rules)}?"


def _either(form: str, given: Mapping[str, Any], rules: list[str]) -> str:
    elements = given["elements"]
    if not isinstance(elements, list) or not elements:
        raise wrong(form, "elements must be a list of formats that is not empty")
    _check_number(form, elements)
    return f"({' | '.join(f'({_of_format(form, one, rules)})' for one in elements)})"


def _json_value(form: str, given: Mapping[str, Any], rules: list[str], space: str = _SPACE) -> str:
    rules.append(f"json_{len(rules)}: %json {_json(form, given['json_schema'], space=space).removeprefix(_OF_SCHEMA)}")
    return f"json_{len(rules) - 1}"


def _text(form: str, excludes: list[str], beginnings: list[str], rules: list[str]) -> str:
    """A terminal of text that is not empty; see `_any_text`."""
    name = f"TEXT_{len(rules)}"
    within = [f"/(.|\\n)*/ {_quoted(one)} /(.|\\n)*/" for one in excludes]
    within += [f"/[ \\t\\r\\n]*/ {_quoted(one)} /(.|\\n)*/" for one in beginnings]
    rules.append(f"{name}: /(.|\\n)+/" + "".join(f" & ~{name}_{i}" for i in range(len(within))))
    rules += [f"{name}_{i}: {one}" for i, one in enumerate(within)]
    return name


def _strings(form: str, name: str, given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise wrong(form, f"{name} must be a list of strings that are not empty")
    _check_number(form, given)
    return given


def _one_of_tags(form: str, given: Mapping[str, Any], rules: list[str], behind: str = "") -> str:
    """An expression for one of the tags of a format, behind a string that all begin with."""
    tags, tokens = given["tags"], _strings(form, "tokens", given.get("tokens", []))
    if not isinstance(tags, list) or not tags:
        raise wrong(form, "tags must be a list that is not empty")
    _check_number(form, tags)
    return f"({' | '.join(_separated_tag(form, tag, tokens, behind, rules) for tag in tags)})"


def _separated_tag(form: str, tag: Any, tokens: list[str], behind: str, rules: list[str]) -> str:
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
    if not tag["begin"].startswith(behind):
        raise wrong(form, f"{behind!r:.100} is not the start of {tag['begin']!r:.100}")
    begin, end = (_with_tokens(text, tokens) for text in (tag["begin"][len(behind) :], tag["end"]))
    return f"{begin} {_json_value(form, content, rules, _SPACE_IN_TAGS)} {end}"


def _with_tokens(text: str, tokens: list[str]) -> str:
    """A text of which some parts are special tokens."""
    parts = re.split("|".join(f"({re.escape(token)})" for token in tokens), text) if tokens else [text]
    spelt = [special_name(part) if part in tokens else _quoted(part) for part in parts if part]
    return " ".join(spelt) or '""'


_FORMATS: Mapping[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any], list[str]], str]]] = {
    "tags_with_separator": (("tags", "separator", "at_least_one", "stop_after_first"), _separated_tags),
    "text_with_tags": (("tags", "trigger", "excludes"), _text_with_tags),
    "any_text": (("excludes", "not_begun"), _any_text),
    "or": (("elements",), _either),
    "json_schema": (("json_schema",), _json_value),
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_GRAMMARS: Mapping[str, Callable[..., str]] = {
    "json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _json_object,
    "structural_tag": _structural_tag,
}  # fmt: skip
