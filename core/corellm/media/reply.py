"""What a child of the pool returned: it may come from a decoder that a hostile file has taken over.

Sizes are checked against limits and the file's real size, and values are copied out of the shared memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corellm.children.child import Child, ChildError
from corellm.errors import CorellmError, MediaError, MediaTooLargeError, ProcessingError

if TYPE_CHECKING:
    import numpy as np

_RAISED: dict[str, type[CorellmError]] = {
    kind.__name__: kind for kind in (MediaError, MediaTooLargeError, ProcessingError)
}
_MAX_MESSAGE = 1000


class Reply:
    """What a child returned, not trusted: a value that fails a check ends the child and raises `ChildError`."""

    def __init__(self, value: Any, child: Child) -> None:
        self._value, self.child = value, child
        self.require(isinstance(value, dict))
        if "raised" in value:
            self._raise(value["raised"])

    def require(self, condition: bool) -> None:
        """Raise `ChildError` unless a check holds, and end the child, which may have been taken over."""
        if not condition:
            self.child.kill()
            raise ChildError("an impossible reply")

    def get(self, key: str) -> Any:
        """An entry, of any type; None if there is none."""
        return self._value.get(key)

    def count(self, key: str, most: int) -> int:
        """An entry that must be an integer from 1 to `most`."""
        value = self._value.get(key)
        self.require(isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most)
        return int(value)

    def number(self, key: str) -> float | None:
        """An entry that must be a finite number or None."""
        value = self._value.get(key)
        self.require(value is None or (isinstance(value, (int, float)) and abs(value) <= sys.float_info.max))
        return None if value is None else float(value)

    @contextmanager
    def view(self, count: int, at: int = 0) -> Iterator[Any]:
        """The shared memory from a position on, which may still change: to be copied, then checked."""
        try:
            with self.child.memory.view(count, at) as view:
                yield view
        except EOFError:
            self.require(False)

    def read_into(self, target: np.ndarray[Any, Any], at: int = 0) -> None:
        """Fill an array from the shared memory."""
        import numpy as np

        with self.view(target.nbytes, at) as view:
            target.reshape(-1).view(np.uint8)[:] = np.frombuffer(view, np.uint8)

    def _raise(self, raised: Any) -> None:
        self.require(isinstance(raised, list) and len(raised) == 4 and str(raised[0]) in _RAISED)
        kind, message = _RAISED[str(raised[0])], str(raised[1])[:_MAX_MESSAGE]
        if issubclass(kind, MediaError):
            raise kind(message, expected=_untupled(raised[2]), got=_untupled(raised[3]))
        raise kind(message)


def _untupled(value: Any) -> Any:
    """A value from JSON, where a tuple became a list."""
    return tuple(value) if isinstance(value, list) else value
