"""What a row of a step costs, measured on the steps that run: how likely right a draft must be to pay.

Knows numbers of rows and seconds; knows no drafts.
"""

from __future__ import annotations

from collections import deque

_REMEMBERED = 9
"""Steps of one number of rows that count: the fastest, as others wait for other programs."""
_OLD = 256
"""Steps after which a number of rows that was not seen is forgotten, so that drafts are tried again."""
_GUESSED_ROWS = 10
"""Rows that cost as much as the rest of a step, as long as nothing is measured."""
_GUESS_WEIGHT = 2.0
MARGIN = 1.15
"""Factor by which a draft must be worth more than its row: the rest of the engine has work with it, too."""
_EVERY = 8
"""Steps between two looks at what was measured."""


class StepCosts:
    """Fits a line to the seconds of decode steps by their rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._seen: dict[int, int] = {}
        self._num_steps = 0
        self._line = (0.0, 0.0, 0.0)
        """Mean of the rows, mean of the seconds, seconds of one more row."""

    def note(self, num_rows: int, seconds: float) -> None:
        """Count a step."""
        if num_rows in self._seconds:
            self._seconds[num_rows].append(seconds)
        else:  # the first may have been recorded, which takes longer
            self._seconds[num_rows] = deque(maxlen=_REMEMBERED)
        self._seen[num_rows] = self._num_steps
        self._num_steps += 1
        if self._num_steps % _EVERY == 1:
            self._fit()

    def _fit(self) -> None:
        for num_rows in [rows for rows, seen in self._seen.items() if self._num_steps - seen > _OLD]:
            del self._seconds[num_rows], self._seen[num_rows]
        points = [(rows, min(seconds), len(seconds)) for rows, seconds in self._seconds.items() if seconds]
        if not points:
            return
        total = sum(weight for *_, weight in points)
        mean_rows = sum(rows * weight for rows, _, weight in points) / total
        mean = sum(seconds * weight for _, seconds, weight in points) / total
        spread = sum(weight * (rows - mean_rows) ** 2 for rows, _, weight in points)
        common = sum(weight * (rows - mean_rows) * (seconds - mean) for rows, seconds, weight in points)
        guess = mean / (_GUESSED_ROWS + mean_rows)
        self._line = (mean_rows, mean, max(0.0, (common + _GUESS_WEIGHT * guess) / (spread + _GUESS_WEIGHT)))

    @property
    def row(self) -> float:
        """The seconds of one more row; 0 as long as nothing is known."""
        return self._line[2]

    def seconds(self, num_rows: int) -> float:
        """Return the seconds of a step; 0 as long as nothing is known."""
        mean_rows, mean, row = self._line
        return max(mean + row * (num_rows - mean_rows), row * num_rows)

    def least_chance(self, num_sequences: int) -> float:
        """Return from which chance on a draft pays in a step of so many sequences.

        It gains its chance of a token, and costs a row, in the time of which the step as a whole gains tokens, too.
        """
        step = self.seconds(num_sequences)
        return MARGIN * self.row * num_sequences / step if step else num_sequences / (_GUESSED_ROWS + num_sequences)
