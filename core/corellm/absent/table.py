"""Refuses arguments and names that scripts written for other engines use and corellm lacks, with what to use instead.

Knows how a table of them is applied to a call; the tables are in `engine`, `names` and `sampling`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from corellm.errors import AbsentMethodError, AbsentNameError, CorellmError, InvalidParameterError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_PLAIN = (bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Absent:
    """An argument or name that corellm lacks."""

    neutral: tuple[object, ...]
    """Values under which it has no effect; any other is refused."""
    instead: str
    """Why, and what to use instead."""

    def accepts(self, value: object) -> bool:
        """Whether a value is neutral; a number is no truth value."""
        return any(
            value is neutral
            or (isinstance(value, _PLAIN) and isinstance(value, bool) is isinstance(neutral, bool) and value == neutral)
            for neutral in self.neutral
        )


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
            refused = error(f"{owner} does not take {name}={given[name]!r:.60}: {table[name].instead}")
            if isinstance(refused, InvalidParameterError):
                refused.param = name
            raise refused
    return {name: value for name, value in given.items() if name not in table}


def refusing(
    table: Mapping[str, Absent], error: Callable[[str], CorellmError] = InvalidParameterError
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a method: neutral arguments of the table are dropped; every other wrong argument is a typed error.

    Args:
        table: absent arguments by name.
        error: what to raise for them, for unknown arguments and for missing ones.
    """

    def decorate(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        signature = inspect.signature(method)
        owner = method.__qualname__.removesuffix(".__init__")
        known = ", ".join(name for name in signature.parameters if name != "self")

        @wraps(method)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            kept: dict[str, Any] = kwargs
            if not table.keys().isdisjoint(kwargs):
                kept = check_absent(owner, kwargs, table, error)
            try:
                signature.bind(*args, **kept)
            except TypeError as misfit:
                raise error(f"{owner}: {misfit}; its arguments are {known}") from None
            return method(*args, **kept)

        return call

    return decorate


def absent_attribute(owner: str, name: str, table: Mapping[str, Absent]) -> AttributeError:
    """The error for `__getattr__` of a class to raise: with the way out for a name of the table, else Python's own."""
    if name in table:
        return AbsentMethodError(f"{owner} has no {name}: {table[name].instead}")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")


def absent_name(module: str, name: str, table: Mapping[str, Absent]) -> Exception:
    """The error for `__getattr__` of a module; an AttributeError loses its message in `from module import name`."""
    if name in table:
        return AbsentNameError(f"{module} has no {name}: {table[name].instead}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
