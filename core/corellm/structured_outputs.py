"""The form that an output is to have: a schema, a regex, a list of choices, a grammar; and the reasoning before it.

Plain data. Knows which forms there are and their types; knows neither grammars nor tokens: `corellm-structured` holds
outputs to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corellm.errors import InvalidParameterError
from corellm.known_fields import KnownFields

STRUCTURED = "structured"
"""The kind of constraint that a form becomes."""
_MAX_MARKER = 100


@dataclass(kw_only=True, frozen=True, slots=True)
class ReasoningParams(KnownFields):
    """Reasoning that an output may begin with, between two markers; the form begins behind it.

    Raises:
        InvalidParameterError: an unknown field, or a value of a wrong type; `param` names the field.
    """

    start: str = "<think>"
    """What opens it: the output begins with this or with the form."""
    end: str = "</think>"
    """What ends it."""
    is_begun: bool = False
    """Whether the prompt has opened it: then the output begins with reasoning."""
    max_tokens: int | None = None
    """After as many tokens of reasoning, its end is written; None for no bound."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not isinstance(marker := getattr(self, name), str) or not 0 < len(marker.strip()) <= _MAX_MARKER:
                raise _wrong(f"reasoning.{name}", f"must be 1 to {_MAX_MARKER} characters, got {marker!r:.100}")
            try:
                marker.encode()
            except UnicodeEncodeError:
                told = f"must be text of whole characters, got {marker!r:.100}"
                raise _wrong(f"reasoning.{name}", told) from None
        if not isinstance(self.is_begun, bool):
            raise _wrong("reasoning.is_begun", f"must be True or False, got {self.is_begun!r:.100}")
        bound = self.max_tokens
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 0):
            raise _wrong("reasoning.max_tokens", f"must be an integer of at least 0, or None; got {bound!r:.100}")

    def before(self, definition: str | None) -> str:
        """Return the definition of a form that comes behind it; None for any text. Its own reasoning, if any, stays."""
        stated = {} if definition is None else json.loads(definition)
        return json.dumps({"reasoning": asdict(self), **stated}, separators=(",", ":"))


@dataclass(kw_only=True, frozen=True, slots=True)
class StructuredOutputsParams(KnownFields):
    """The form of an output. One of the first six fields is given; none if `reasoning` has a bound.

    Raises:
        InvalidParameterError: none or several forms, an unknown field, or a value of a wrong type; `param` names the
            field.
    """

    json: Any = None
    """A JSON Schema: a dict, its text, or a pydantic model. The output is a JSON value that it describes."""
    regex: str | None = None
    """The whole output matches it."""
    choice: Sequence[str] | None = None
    """The output is one of these strings."""
    grammar: str | None = None
    """The output is of the language of a context-free grammar, in Lark's notation or in GBNF."""
    json_object: bool | None = None
    """The output is any JSON object."""
    structural_tag: Any = None
    """Text in which what is between some tags has a schema, as a dict or its text:
    `{"structures": [{"begin": "<call>", "schema": {...}, "end": "</call>"}], "triggers": ["<call>"]}`; or tags alone,
    `{"format": {"type": "tags_with_separator", ...}}` of XGrammar."""
    whitespace_pattern: str | None = None
    """A regex for the space between JSON's tokens; by default up to two spaces, or a line break and an indent."""
    disable_any_whitespace: bool = False
    """JSON without space between its tokens."""
    reasoning: Any = None
    """The reasoning that may come before the form, a `ReasoningParams` or its fields; None if the form begins at
    once."""

    def __post_init__(self) -> None:
        self.definition()

    def definition(self) -> str:
        """All of it as one JSON text.

        Raises:
            InvalidParameterError: as the class.
        """
        given = {name: value for name in _FORMS if (value := getattr(self, name)) not in (None, False)}
        reasoning = self._reasoning()
        if not given and reasoning is not None and reasoning.max_tokens is not None:
            return reasoning.before(None)
        if len(given) != 1:
            told = " and ".join(given) or "none"
            wanted = f"structured_outputs takes one of {', '.join(_FORMS)}; got {told}"
            raise InvalidParameterError(wanted, param="structured_outputs")
        name, value = given.popitem()
        stated = {name: _FORMS[name](name, value), **self._whitespace(name)}
        if reasoning is not None:
            stated["reasoning"] = asdict(reasoning)
        try:
            return json.dumps(stated, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _wrong(name, f"cannot be written as JSON: {error}") from None

    def _reasoning(self) -> ReasoningParams | None:
        if self.reasoning is None or isinstance(self.reasoning, ReasoningParams):
            return self.reasoning
        if not isinstance(self.reasoning, Mapping):
            raise _wrong("reasoning", f"must be a ReasoningParams or its fields, got {self.reasoning!r:.100}")
        return ReasoningParams(**self.reasoning)

    def _whitespace(self, form: str) -> dict[str, Any]:
        pattern, disabled = self.whitespace_pattern, self.disable_any_whitespace
        if pattern is not None and not isinstance(pattern, str):
            raise _wrong("whitespace_pattern", f"must be a string, got {pattern!r:.100}")
        if not isinstance(disabled, bool):
            raise _wrong("disable_any_whitespace", f"must be True or False, got {disabled!r:.100}")
        asked = {"whitespace_pattern": pattern, "disable_any_whitespace": disabled or None}
        options = {name: value for name, value in asked.items() if value is not None}
        if len(options) == len(asked) or (options and form not in ("json", "json_object")):
            name = next(iter(options))
            raise _wrong(name, "is for json and json_object, and goes without disable_any_whitespace")
        return options


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, f"must be a string that is not empty, got {value!r:.100}")
    return value


def _object(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _wrong(name, f"is no JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise _wrong(name, f"must be a JSON object, as a dict or its text; got {value!r:.100}")
    return dict(value)


def _schema(name: str, value: Any) -> dict[str, Any]:
    of_model = getattr(value, "model_json_schema", None)
    return _object(name, of_model() if callable(of_model) else value)


def _choices(name: str, value: Any) -> list[str]:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not value or not all(isinstance(choice, str) for choice in value):
        raise _wrong(name, f"must be a list of strings that is not empty, got {value!r:.100}")
    return list(dict.fromkeys(value))


def _yes(name: str, value: Any) -> bool:
    if value is not True:
        raise _wrong(name, f"must be True, got {value!r:.100}")
    return True


_FORMS: Mapping[str, Callable[[str, Any], Any]] = {
    "json": _schema, "regex": _text, "choice": _choices, "grammar": _text, "json_object": _yes,
    "structural_tag": _object,
}  # fmt: skip


def _wrong(name: str, told: str) -> InvalidParameterError:
    return InvalidParameterError(f"structured_outputs: {name} {told}", param=f"structured_outputs.{name}")
