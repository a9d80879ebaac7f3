"""Arguments that scripts written for other engines use and corellm lacks: refused by a sentence.

This file knows how a table of them is applied; the tables are beside the classes whose arguments they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corellm.errors import CorellmError, InvalidParameterError

_PLAIN = (bool, int, float, str, list, tuple, dict)


@dataclass(frozen=True)
class Absent:
    """An argument that does nothing here."""

    neutral: tuple[object, ...]
    """Values that ask for nothing; any other is refused."""
    instead: str
    """Why, and what to use instead."""

    def accepts(self, value: object) -> bool:
        """Whether a value asks for nothing."""
        return any(value is neutral or (isinstance(value, _PLAIN) and value == neutral) for neutral in self.neutral)


def check_absent(
    owner: str,
    given: Mapping[str, Any],
    table: Mapping[str, Absent],
    error: Callable[[str], CorellmError] = InvalidParameterError,
) -> dict[str, Any]:
    """The arguments that are not in the table.

    Args:
        owner: whose arguments these are, for the message.
        given: arguments by name.
        table: absent arguments by name.
        error: what to raise.

    Raises:
        CorellmError: an argument of the table has another value than its neutral ones.
    """
    for name in given.keys() & table.keys():
        if not table[name].accepts(given[name]):
            refused = error(f"{owner} does not take {name}={given[name]!r:.60}: {table[name].instead}")
            if isinstance(refused, InvalidParameterError):
                refused.param = name
            raise refused
    return {name: value for name, value in given.items() if name not in table}
