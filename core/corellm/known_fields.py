"""Refuses unknown fields of a request's parameters, by name. Knows dataclasses, and no parameter."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from corellm.config import suggestion
from corellm.errors import InvalidParameterError


class KnownFields:
    """The base of a dataclass that refuses unknown fields, where it would raise a plain TypeError.

    Fields that are left out of its `repr` are not for users, and are not suggested.

    Raises:
        InvalidParameterError: an unknown field, with the nearest known one; `param` names the field.
    """

    __slots__ = ()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse unknown fields."""
        known = {field.name: field.repr for field in fields(cls)}  # type: ignore[arg-type]  # subclasses are dataclasses
        for name in given:
            if name not in known:
                shown = [own for own, is_shown in known.items() if is_shown]
                raise InvalidParameterError(f"{cls.__name__} has no {name!r}{suggestion(name, shown)}", param=name)
        return object.__new__(cls)
