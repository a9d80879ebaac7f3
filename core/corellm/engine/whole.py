"""A call that changes the engine's state happens whole or not at all, wherever an exception cuts it short.

Ctrl-C can come between any two lines, also of the scheduler, and leaves state half changed. It is not held back: a
step may take seconds. Instead the engine knows that a call did not end, and puts its state in order before anything
else happens. If that is interrupted as well, the next call does it. Knows nothing of what the state is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Restorable(Protocol):
    """What has calls that happen whole or not at all."""

    is_whole: bool
    """Whether no call is under way, and none was cut short."""

    def restore(self) -> None:
        """Put the state in order, whatever it is: nothing of the call that was cut short has happened.

        May itself be interrupted, and is then called again.
        """


_Self = TypeVar("_Self", bound=Restorable)
_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def whole(
    method: Callable[Concatenate[_Self, _Arguments], _Answer],
) -> Callable[Concatenate[_Self, _Arguments], _Answer]:
    """The method, whose changes are undone if it does not come to its end."""

    @wraps(method)
    def run(owner: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        if not owner.is_whole:
            owner.restore()
        owner.is_whole = False
        try:
            answer = method(owner, *args, **kwargs)
        except BaseException:
            owner.restore()
            raise
        owner.is_whole = True
        return answer

    return run
