"""Which arguments and fields there are, and refusing others by name: of calls, classes, objects that clients send.

Knows signatures, dataclasses and tables; knows no argument and no field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from corellm.config import argument_hint, suggestion
from corellm.errors import CorellmError, InvalidParameterError

_COMPARED = 100
"""Characters of an unknown name that are compared with known ones: each takes a microsecond."""
_PLAIN = (bool, int, float, str, list, tuple, dict)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def refusing(
    error: Callable[[str], CorellmError] = InvalidParameterError,
    hint: Callable[[str, Iterable[str]], str] = argument_hint,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a method: arguments that do not fit raise a typed error, where they would raise a plain TypeError.

    Args:
        error: what to raise for unknown arguments and for missing ones.
        hint: what the message ends with, of an unknown name and all known ones.
    """

    def decorate(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        signature = inspect.signature(method)
        known = [name for name in signature.parameters if name != "self"]

        @wraps(method)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as misfit:
                owner = method.__qualname__.removesuffix(".__init__")
                unknown = next((name for name in kwargs if name not in known), None)
                told = f"; its arguments are {', '.join(known)}" if unknown is None else hint(unknown, known)
                raise error(f"{owner}: {misfit}{told}") from None
            return method(*args, **kwargs)

        return call

    return decorate


@dataclass(frozen=True)
class Absent:
    """An argument, field or name that corellm lacks."""

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


class KnownFields:
    """The base of a dataclass with named fields that refuses others, where it would raise a plain TypeError.

    Fields that are left out of its `repr` are not for users, and are not suggested.

    Raises:
        InvalidParameterError: an unknown field, with the nearest known one; `param` names the field. Or a value without
            a name.
    """

    __slots__ = ()

    def __new__(cls, *unnamed: Any, **given: Any) -> Self:
        """Refuse unknown fields, and values without a name."""
        if unnamed:
            raise InvalidParameterError(f"{cls.__name__} takes its fields by name, got {unnamed[0]!r:.60}")
        known = {field.name: field.repr for field in fields(cls)}  # type: ignore[arg-type]  # subclasses are dataclasses
        for name in given:
            if name not in known:
                shown = [own for own, is_shown in known.items() if is_shown]
                raise InvalidParameterError(f"{cls.__name__} has no {name!r}{suggestion(name, shown)}", param=name)
        return object.__new__(cls)


@dataclass(frozen=True)
class FieldTable:
    """The fields of an object that clients send. Checks, documents and tests are made of it."""

    taken: Mapping[str, str]
    """Fields with an effect, and their meaning."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Fields that are accepted without an effect, and what they would do."""
    refused: Mapping[str, Absent] = field(default_factory=dict)
    """Fields that corellm lacks: values that ask for nothing, and what to use instead."""

    def __contains__(self, name: object) -> bool:
        """Whether a field is in one of the tables."""
        return name in self.taken or name in self.ignored or name in self.refused

    def kept(
        self, given: Mapping[str, Any], refuse: Callable[[str, str], Exception], *, drops_unknown: bool = False
    ) -> dict[str, Any]:
        """The taken fields of an object. A field that is None is as good as absent.

        Args:
            given: the object.
            refuse: the error for a field, of its name and what to use instead; for an unknown one, of its name and the
                nearest known one as `; did you mean ...`, or nothing.
            drops_unknown: whether fields that are in no table are dropped.

        Raises:
            Exception: of `refuse`, for a field that is refused or unknown.
        """
        kept = {}
        for name, value in given.items():
            if value is None or name in self.ignored:
                continue
            if name in self.taken:
                kept[name] = value
            elif name in self.refused:
                if not self.refused[name].accepts(value):
                    raise refuse(name, self.refused[name].instead)
            elif not drops_unknown:
                raise refuse(str(name), self._nearest(str(name)[:_COMPARED]))
        return kept

    def _nearest(self, name: str) -> str:
        hint = suggestion(name, [*self.taken, *self.ignored])
        return hint if "did you mean" in hint else ""
