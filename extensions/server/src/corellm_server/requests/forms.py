"""The form that a client asks an output to have: `response_format`, `text.format`, `output_config.format`, and others.

Knows the fields and what they mean; knows no grammars. Errors of a form name the field that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corellm import StructuredOutputsParams
from corellm.errors import InvalidParameterError
from corellm_server.errors import ApiError
from corellm_server.requests.sampling import ChoiceFields, CompletionFields

_OWN = "structured_outputs"
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_OF_SCHEMA = {"name": str, "description": str, "schema": dict, "strict": bool}


def form_of(request: ChoiceFields) -> StructuredOutputsParams | None:
    """The form that the output is to have, or None.

    Raises:
        ApiError: what is wrong with it; names the field.
    """
    asked = _asked(request)
    if asked is None:
        return None
    with form_errors(asked[0]):
        return StructuredOutputsParams(**asked[1])


def schema_of(request: ChoiceFields) -> Mapping[str, Any] | None:
    """The JSON schema that the output is to have; None for no form, and for others.

    Raises:
        ApiError: as `form_of`.
    """
    form = dict((_asked(request) or ("", {}))[1])
    if form == {"json_object": True}:
        return {"type": "object"}
    schema = form.pop("json", None)
    return schema if isinstance(schema, Mapping) and not form else None


def form_field(request: ChoiceFields) -> str:
    """The client's field that outputs are held to a form by: one that has a form, or the tools.

    Raises:
        ApiError: as `form_of`.
    """
    asked = _asked(request)
    return "tools" if asked is None else asked[0]


@contextmanager
def form_errors(field: str | None) -> Iterator[None]:
    """Have errors of the form name the client's field, also those while it is followed; None for no form.

    Raises:
        ApiError: for an `InvalidParameterError` of the form.
    """
    try:
        yield
    except InvalidParameterError as error:
        if field is None or str(error.param).partition(".")[0] not in (_OWN, "constraint"):
            raise
        raise _located(field, error) from None


def _located(path: str, error: InvalidParameterError) -> ApiError:
    if path == _OWN:
        return ApiError(400, str(error), param=path if error.param == "constraint" else error.param)
    return ApiError(400, f"{path}: {str(error).removeprefix(f'{_OWN}: ')}", param=path)


def _asked(request: ChoiceFields) -> tuple[str, dict[str, Any]] | None:
    """The field that has the form, and the form."""
    found = dict(_of_others(request))
    if isinstance(request, CompletionFields) and request.response_format is not None:
        found |= _formatted("response_format", request.response_format, "json_schema")
    for name in ("text", "output_config"):
        if (within := getattr(request, name, None)) is not None and within.format is not None:
            found |= _formatted(f"{name}.format", within.format, None)
    if len(found) > 1:
        raise ApiError(400, f"{' and '.join(found)} both say which form the output has; give one", param=max(found))
    return next(iter(found.items()), None)


def _of_others(request: ChoiceFields) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, form in _GUIDED.items():
        if (value := getattr(request, name)) is not None:
            yield name, {form: value}
    if request.structured_outputs is not None:
        own = {name: value for name, value in request.structured_outputs.items() if value is not None}
        for name in own:
            if name not in StructuredOutputsParams.__dataclass_fields__:
                path = f"{_OWN}.{name:.100}"
                raise ApiError(400, f"unrecognized request argument: {path!r}", param=path, code="unknown_parameter")
        yield _OWN, own


def _formatted(path: str, stated: Mapping[str, Any], within: str | None) -> dict[str, dict[str, Any]]:
    """What a `response_format` asks for, by the place that its errors name.

    Args:
        path: the field.
        stated: its value.
        within: the key of an object that has the schema; None where the schema is beside the type.
    """
    kind, given = stated.get("type"), {key: value for key, value in stated.items() if key != "type"}
    if kind == "json_schema":
        if within is not None:
            _refuse_unknown(path, given, {within})
            path = f"{path}.{within}"
        return {f"{path}.schema": {"json": _schema(path, given if within is None else given.get(within))}}
    if kind == "structural_tag":
        _refuse_unknown(path, given, {"structures", "triggers", "format"})
        return {path: {"structural_tag": given}}
    _refuse_unknown(path, given, set())
    if kind not in ("text", "json_object"):
        told = "must be text, json_object, json_schema or structural_tag"
        raise ApiError(400, f"{path}.type {told}, got {kind!r:.100}", param=f"{path}.type")
    return {} if kind == "text" else {path: {"json_object": True}}


def _schema(path: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ApiError(400, f"{path} must be an object", param=path, code="invalid_type")
    _refuse_unknown(path, given, _OF_SCHEMA.keys())
    for name, kind in _OF_SCHEMA.items():
        if (value := given.get(name)) is not None and not isinstance(value, kind):
            named = f"{path}.{name}"
            raise ApiError(400, f"{named} must be {_KINDS[kind]}", param=named, code="invalid_type")
    schema = given.get("schema")
    if schema is None:
        named = f"{path}.schema"
        raise ApiError(400, f"{named} is required", param=named, code="missing_required_parameter")
    return dict(schema)


_KINDS = {str: "a string", dict: "an object", bool: "true or false"}


def _refuse_unknown(path: str, given: Mapping[str, Any], known: Any) -> None:
    for name, value in given.items():
        if name not in known and value is not None:
            named = f"{path}.{name:.100}"
            raise ApiError(400, f"unrecognized request argument: {named!r}", param=named, code="unknown_parameter")
