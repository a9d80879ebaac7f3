"""Tools of a request, checked, in the form in which chat templates take them; which of them may or must be called.

Knows OpenAI's two spellings: of chat, where what a function is stands under `function`, and of responses, where it
stands beside the type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from corellm_server.errors import ApiError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""OpenAI's are half as long, Anthropic's are not."""
_FIELDS = ("name", "description", "parameters", "strict")


class Demand(NamedTuple):
    """A demand that a tool be called."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Tools of which one is called; none if the model may write text instead."""
    one_call: bool = False
    """Whether only one call may come."""


NO_DEMAND = Demand()


def given_tools(tools: Sequence[Any] | None, choice: object, most: int) -> list[dict[str, Any]]:
    """The tools that the model may call, as templates take them; none if it may call none.

    Args:
        tools: of the request.
        choice: `tool_choice` of the request.
        most: how many there may be.

    Raises:
        ApiError: a tool is malformed, or the choice cannot be kept; names it.
    """
    if len(tools or ()) > most:
        raise ApiError(400, f"tools has {len(tools or ())}, {most} are allowed", param="tools")
    read = [_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in read]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ApiError(400, f"tools has {twice!r} twice; give each a name of its own", param="tools")
    _check_choice(choice, names)
    return [] if choice == "none" else read


def demand_of(tools: Sequence[Mapping[str, Any]], choice: object, one_call: bool) -> Demand:
    """What a request demands.

    Args:
        tools: of `given_tools`.
        choice: `tool_choice` of the request, which `given_tools` has checked.
        one_call: whether the client takes one call at most.
    """
    if isinstance(choice, Mapping):
        return Demand([tool for tool in tools if tool["function"]["name"] == _chosen(choice)], one_call=True)
    return Demand(tools if choice == "required" else (), one_call=one_call)


def parameter_places(
    tools: Sequence[Any] | None, called: Sequence[Mapping[str, Any]], field: str
) -> dict[str, Mapping[str, Any]]:
    """The schemas of tools that may be called, by where the client has them.

    Args:
        tools: of the request, which `given_tools` has checked.
        called: some of its result.
        field: the client's name of a schema.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in called}
    return {
        f"tools[{i}]{'.function' if 'function' in tool else ''}.{field}": schemas[name]
        for i, tool in enumerate(tools or ())
        if (name := tool.get("function", tool)["name"]) in schemas
    }


def strict_place(tools: Sequence[Any] | None) -> str | None:
    """The place of the first `strict` that is true: calls must keep to their schemas. None if there is none.

    Args:
        tools: of the request, which `given_tools` has checked.
    """
    for i, tool in enumerate(tools or ()):
        if tool.get("function", tool).get("strict"):
            return f"tools[{i}]{'.function' if 'function' in tool else ''}.strict"
    return None


def _check_choice(choice: object, names: Sequence[str]) -> None:
    if choice in (None, "none", "auto"):
        return
    if choice != "required" and not isinstance(choice, Mapping):
        told = f"tool_choice must be auto, none or required, or name a function; got {choice!r:.100}"
        raise ApiError(400, told, param="tool_choice")
    if not names:
        raise ApiError(400, "tool_choice demands a call, and there are no tools; give tools", param="tool_choice")
    if isinstance(choice, Mapping) and (name := _chosen(choice)) not in names:
        told = f"tool_choice: tools has no function {name!r:.100}; there are {', '.join(names)}"
        raise ApiError(400, told, param="tool_choice")


def _chosen(choice: Mapping[str, Any]) -> str:
    """The name of the function that a choice names, as chat has it or as Responses has it.

    Raises:
        ApiError: it names none.
    """
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        told = (
            f'tool_choice must be like {{"type": "function", "function": {{"name": "f"}}}}, got {dict(choice)!r:.100}'
        )
        raise ApiError(400, told, param="tool_choice")
    return name


def _tool(where: str, given: Any) -> dict[str, Any]:
    """One tool."""
    if not isinstance(given, Mapping):
        raise ApiError(400, f"{where} must be an object, with type function", param=where)
    if given.get("type") != "function":
        told = f"{where}: type {given.get('type')!r:.100} is not supported: tools are functions that the client runs"
        raise ApiError(400, told, param=where, code="unsupported_parameter")
    function, place = given, where
    if "function" in given:
        function, place = given["function"], f"{where}.function"
        _check_known(where, given, ("type", "function"))
    if not isinstance(function, Mapping):
        raise ApiError(400, f"{place} must be an object with a name", param=place)
    _check_known(place, function, _FIELDS if "function" in given else ("type", *_FIELDS))
    return {"type": "function", "function": _function(place, function)}


def _check_known(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known and given[name] is not None:
            raise ApiError(400, f"{where} has no {name!r:.100}", param=f"{where}.{name:.100}", code="unknown_parameter")


def _function(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    name, description, parameters = given.get("name"), given.get("description"), given.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        told = f"{where}.name must be 1 to 128 letters, digits, dots, dashes and underscores; got {name!r:.100}"
        raise ApiError(400, told, param=f"{where}.name")
    if description is not None and not isinstance(description, str):
        raise ApiError(400, f"{where}.description must be text", param=f"{where}.description")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ApiError(400, f"{where}.parameters must be a JSON schema, an object", param=f"{where}.parameters")
    if given.get("strict") not in (None, False, True):
        raise ApiError(400, f"{where}.strict must be true or false", param=f"{where}.strict", code="invalid_type")
    described = {} if description is None else {"description": description}
    return {"name": name, **described, "parameters": {"type": "object", "properties": {}, **(parameters or {})}}
