"""Errors that cross from the engine's process: by name, with their message and attributes.

Knows the tree in `corellm.errors` and nothing of what raises them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corellm import errors
from corellm.errors import CorellmError, RequestFailedError


class Fault(msgspec.Struct, array_like=True):
    """An error as plain data."""

    name: str
    message: str
    details: dict[str, Any]
    """Its attributes; what is not plain is its text."""


def to_fault(error: BaseException) -> Fault:
    """An error as plain data; an untyped one becomes a `RequestFailedError` that tells its type only."""
    if not isinstance(error, CorellmError):
        return Fault("RequestFailedError", f"the request failed with {type(error).__name__}", {})
    known = next(kind for kind in type(error).__mro__ if vars(errors).get(kind.__name__) is kind)
    return Fault(known.__name__, str(error), {name: _plain(value) for name, value in vars(error).items()})


def to_error(fault: Fault) -> CorellmError:
    """The error of a fault; one of an unknown name becomes a `RequestFailedError`."""
    kind = vars(errors).get(fault.name)
    if not (isinstance(kind, type) and issubclass(kind, CorellmError)):
        kind = RequestFailedError
    error = kind(fault.message)
    vars(error).update((name, value) for name, value in fault.details.items() if name in vars(error))
    return error


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else f"{value!r:.1000}"
