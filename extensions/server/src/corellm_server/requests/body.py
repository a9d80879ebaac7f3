"""What all request bodies share: strict types, and one table of OpenAI's fields that are ignored or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, FailFast, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from corellm.known_fields import Absent, FieldTable
from corellm_server.errors import ApiError

_MAX_ENTRIES = 1 << 14
"""Most entries of a field that is an object: pydantic makes an error of a thousand bytes for each wrong one."""


class _FirstError(FailFast):
    """Ends the validation of a list at its first wrong element."""

    __hash__ = object.__hash__  # for unions


FIRST_ERROR = _FirstError()
"""Annotation of every list: without it an error of a thousand bytes is made for each wrong element."""

_KINDS = {
    "string_type": "a string",
    "string_unicode": "a string of valid Unicode",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "too_short": "a list that is not empty",
    "string_too_short": "a string that is not empty",
    "int_parsing": "an integer",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "is_instance_of": "a file of the form, with a filename",
}


class Body(BaseModel):
    """A request's body. A field that is null is as good as absent."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    WITHIN: ClassVar[str] = ""
    """What errors put before the names of fields: the object that they are in, and a dot."""
    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Fields that are accepted without an effect, and what they would do."""
    REFUSED: ClassVar[Mapping[str, Absent]] = {}
    """Fields that corellm lacks: values that ask for nothing, and what to use instead."""

    @classmethod
    @cache
    def table(cls) -> FieldTable:
        """All of its fields."""
        taken = {name: field.description or "" for name, field in cls.model_fields.items()}
        return FieldTable(taken, cls.IGNORED, cls.REFUSED)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of all that is accepted, for the OpenAPI document."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        fields = schema["properties"]
        for name in fields.keys() - schema.get("required", ()):
            if "type" in fields[name]:
                fields[name]["type"] = [fields[name]["type"], "null"]
        for name, effect in cls.IGNORED.items():
            fields[name] = {"description": f"Ignored: {effect}."}
        for name, absent in cls.REFUSED.items():
            values = [value for value in absent.neutral if value is not None and not isinstance(value, tuple)]
            fields[name] = {"enum": [*values, None], "description": f"Not supported: {absent.instead}."}
        schema["additionalProperties"] = {"type": "null"}
        return reference

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """The fields that have an effect.

        Raises:
            ApiError: a field that is refused or unknown.
        """
        if not isinstance(given, dict):
            return given
        kept = cls.table().kept(given, cls._refusal)
        for name, value in kept.items():
            if isinstance(value, dict) and len(value) > _MAX_ENTRIES:
                told = f"{cls.WITHIN + name} has {len(value)} entries, {_MAX_ENTRIES} are allowed"
                raise ApiError(400, told, param=cls.WITHIN + name)
        return kept

    @classmethod
    def _refusal(cls, name: str, told: str) -> ApiError:
        path = cls.WITHIN + name[:100]
        if name in cls.REFUSED:
            return ApiError(400, f"{path} is not supported: {told}", param=path, code="unsupported_parameter")
        return ApiError(400, f"unrecognized request argument: {path!r}{told}", param=path, code="unknown_parameter")


def wrong_body(errors: Sequence[ErrorDetails]) -> ApiError:
    """The error for a body that is not as its model says, in our words."""
    first = errors[0]
    place = [part for part in first["loc"] if part not in ("body", "path", "query")]
    param = str(place[0]) if place else None
    for part in place[1:]:
        if not isinstance(part, int):
            break
        param = f"{param}[{part}]"
    if first["type"] == "missing":
        return ApiError(400, f"{param} is required", param=param, code="missing_required_parameter")
    same = [error["type"] for error in errors if error["loc"][1:2] == first["loc"][1:2]]
    kinds = dict.fromkeys(_KINDS[kind] for kind in same if kind in _KINDS)
    told = f"must be {' or '.join(kinds)}" if kinds else "has a wrong type or value"
    if not kinds and first["type"] == "literal_error":
        told = f"must be {first['ctx']['expected']}"
    return ApiError(400, f"{param or 'the body'} {told}", param=param, code="invalid_type")
