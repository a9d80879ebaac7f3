"""Whether the engine hangs: it has work, and gives no sign of life for longer than its longest step.

Knows times only. A process or machine that was paused as a whole is no hang: the time between two looks counts as a
second at most. Nor do engines hang that are being started again, however long requests wait for one.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

_SILENT_SECONDS = 2.0
"""An engine that lives tells it once a second, or after its step."""
_MOST_OF_A_LOOK = 1.0


class HasSigns(Protocol):
    """What gives signs of life."""

    @property
    def seconds_silent(self) -> float:
        """Seconds since the last one; infinite where no engine serves."""


class Watchdog:
    """Looks at an engine.

    Args:
        client: the engine.
        seconds: of silence that are a hang; 0 for none.
    """

    def __init__(self, client: HasSigns, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        self._silent_seconds = 0.0
        self._looked = time.monotonic()

    def look(self, *, has_work: bool) -> None:
        """Look once."""
        now = time.monotonic()
        self._silent_seconds += min(now - self._looked, _MOST_OF_A_LOOK)
        self._looked = now
        seconds_silent = self._client.seconds_silent
        if not has_work or seconds_silent < _SILENT_SECONDS or math.isinf(seconds_silent):
            self._silent_seconds = 0.0

    @property
    def is_hung(self) -> bool:
        """Whether it hangs, as of the last look."""
        return 0 < self._seconds <= self._silent_seconds
