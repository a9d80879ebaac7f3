"""Applies tables of absent arguments and names to calls and look-ups. Knows no table; they are beside it.

Every error says what to use instead, or which name is the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from corellm.config import suggestion
from corellm.errors import AbsentMethodError, CorellmError, InvalidParameterError
from corellm.known_fields import Absent, refusing
from corellm.plugin.calls import CallOfExtension

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def check_absent(
    owner: str,
    given: Mapping[str, Any],
    table: Mapping[str, Absent],
    error: Callable[[str], CorellmError] = InvalidParameterError,
) -> dict[str, Any]:
    """Return the arguments that are not in the table.

    Args:
        owner: name of the called class or method, for the message.
        given: keyword arguments of a call.
        table: absent arguments by name.
        error: what to raise.

    Raises:
        CorellmError: an argument of the table has another value than its neutral ones.
    """
    for name in given:
        if name in table and not table[name].accepts(given[name]):
            shown = " ".join(f"{given[name]!r:.60}".split())  # a tensor has several lines
            refused = error(f"{owner} does not take {name}={shown}: {table[name].instead}")
            if isinstance(refused, InvalidParameterError):
                refused.param = name
            raise refused
    return {name: value for name, value in given.items() if name not in table}


def takes(
    table: Mapping[str, Absent], error: Callable[[str], CorellmError] = InvalidParameterError
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a function: neutral arguments of the table are dropped; every other wrong argument is a typed error.

    Args:
        table: absent arguments by name.
        error: what to raise for them, for unknown arguments and for missing ones.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        owner = function.__qualname__.removesuffix(".__init__")
        checked = refusing(error, suggestion)(function)

        @wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            kept: dict[str, Any] = kwargs
            if not table.keys().isdisjoint(kwargs):
                kept = check_absent(owner, kwargs, table, error)
            return checked(*args, **kept)

        return call

    return decorate


def absent_attribute(owner: object, name: str, table: Mapping[str, Absent]) -> AttributeError:
    """The error for `__getattr__` of a class to raise: with the way out for a name of the table, else the nearest name.

    Python's own protocols ask for names with underscores; these get Python's own error. A name that an extension brings
    comes here where it is not installed.
    """
    kind = type(owner)
    if isinstance(call := getattr(kind, name, None), CallOfExtension):
        return call.absent()
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    return AbsentMethodError(f"{kind.__name__} has no {name}{way_out(name, table, dir(kind))}")


def way_out(name: str, table: Mapping[str, Absent], known: Iterable[str]) -> str:
    """What to use instead of a name, for the end of a message."""
    if name in table:
        return f": {table[name].instead}"
    return suggestion(name, [other for other in known if not other.startswith("_")])
