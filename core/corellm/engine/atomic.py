"""Makes method calls atomic: an exception anywhere in a call, Ctrl-C too, undoes what it changed.

Ctrl-C can come between any two lines, also of the scheduler, and leave state half changed. It is not deferred, because
a step may take seconds. Instead `restore` undoes the interrupted call: at once or, if that is interrupted, too, before
the next call. Does not know what the state is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Restorable(Protocol):
    """An object with atomic calls."""

    is_consistent: bool
    """Whether no call is under way, and none was interrupted."""

    def restore(self) -> None:
        """Undo an interrupted call, whatever state it left. May itself be interrupted, and is then called again."""


_Self = TypeVar("_Self", bound=Restorable)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def atomic(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Decorate a method: its changes are undone if it raises or is interrupted."""

    @wraps(method)
    def run(owner: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not owner.is_consistent:
            owner.restore()
        owner.is_consistent = False
        try:
            result = method(owner, *args, **kwargs)
        except BaseException:
            owner.restore()
            raise
        owner.is_consistent = True
        return result

    return run
