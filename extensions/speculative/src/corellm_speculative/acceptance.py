"""How often guesses are right, by how many tokens stood before them alike: a longer likeness is a better guess."""

from __future__ import annotations

_NUM_KINDS = 7
"""Likenesses of 1, 2-3, 4-7, ... tokens."""
_WEIGHT = 3.0
"""Guesses that what was known before counts for."""


class Acceptance:
    """Counts guesses, the newest for most.

    Args:
        before: what was known before there were any; None for even chances.
        memory: how many guesses count.
    """

    def __init__(self, before: Acceptance | None = None, *, memory: int = 32) -> None:
        self._before, self._kept = before, 1 - 1 / memory
        self._right, self._all = [0.0] * _NUM_KINDS, [0.0] * _NUM_KINDS

    def note(self, length: int, is_right: bool) -> None:
        """Count a guess that so many tokens spoke for."""
        kind = min(length.bit_length(), _NUM_KINDS) - 1
        self._right[kind] = self._right[kind] * self._kept + is_right
        self._all[kind] = self._all[kind] * self._kept + 1
        if self._before is not None:
            self._before.note(length, is_right)

    def chance(self, length: int) -> float:
        """Return the chance of a guess that so many tokens speak for."""
        kind = min(length.bit_length(), _NUM_KINDS) - 1
        before = 0.5 if self._before is None else self._before.chance(length)
        return (self._right[kind] + _WEIGHT * before) / (self._all[kind] + _WEIGHT)
