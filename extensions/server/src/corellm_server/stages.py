"""Which stages a request went through, and when. Knows names and times; knows neither requests nor tracing.

A stage is noted by the task that is in it; tasks that it begins share its list, so no argument carries the request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Stage(NamedTuple):
    """One stage, in seconds of `time.monotonic()`."""

    name: str
    began: float
    ended: float


_noted: ContextVar[list[Stage]] = ContextVar("noted")


def note_stages() -> list[Stage]:
    """A list that gets the stages of this task, and of tasks begun by it, when they end."""
    stages: list[Stage] = []
    _noted.set(stages)
    return stages


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Note a stage, also where it fails."""
    began = time.monotonic()
    try:
        yield
    finally:
        _noted.get([]).append(Stage(name, began, time.monotonic()))
