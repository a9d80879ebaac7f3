"""What is a hang, and what is not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from corellm_server import watchdog
from corellm_server.watchdog import Watchdog


class Times:
    """A clock and an engine's silence, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.seconds_silent = 0.0
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: self.now))

    def watch(self, dog: Watchdog, seconds: float, *, step: float = 0.5, has_work: bool = True) -> bool:
        """Look now and then for some seconds of silence; whether it is a hang at the end."""
        for _ in range(round(seconds / step)):
            self.now += step
            self.seconds_silent += step
            dog.look(has_work=has_work)
        return dog.is_hung


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Them."""
    return Times(monkeypatch)


def test_row_38_silence_with_work_is_a_hang(times: Times) -> None:
    """For as long as the option says, not before."""
    dog = Watchdog(times, 10.0)  # type: ignore[arg-type]
    assert not times.watch(dog, 9)
    assert times.watch(dog, 4)


def test_row_38_a_step_or_no_work_begins_anew(times: Times) -> None:
    """A long step that ended in time was none, and an engine that has nothing to do hangs for no client."""
    dog = Watchdog(times, 10.0)  # type: ignore[arg-type]
    assert not times.watch(dog, 9)
    times.seconds_silent = 0.0
    assert not times.watch(dog, 9)
    assert not times.watch(dog, 60, has_work=False)
    assert not times.watch(dog, 9)


def test_row_38_a_paused_machine_is_no_hang(times: Times) -> None:
    """All processes slept: the engine's first sign of life comes after this one's first look."""
    dog = Watchdog(times, 10.0)  # type: ignore[arg-type]
    assert not times.watch(dog, 3)
    assert not times.watch(dog, 3600, step=3600)


def test_row_38_engines_that_are_started_again_hang_in_nothing(times: Times) -> None:
    """However long they load while requests wait for them: none gives signs of life then."""
    dog, times.seconds_silent = Watchdog(times, 10.0), math.inf  # type: ignore[arg-type]
    assert not times.watch(dog, 60)
    times.seconds_silent = 0.0
    assert not times.watch(dog, 9)
    assert times.watch(dog, 4)


def test_row_38_can_be_turned_off(times: Times) -> None:
    """By 0."""
    assert not times.watch(Watchdog(times, 0), 3600)  # type: ignore[arg-type]
