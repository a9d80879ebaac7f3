"""Which replicas take requests now, as this process's routers were told.

A module of its own: Ray Serve makes a router of a copy of its class, and of all that is in the class's module.
"""

from __future__ import annotations

from collections.abc import Iterable

_RUNNING: dict[str, tuple[str, ...]] = {}


def note(app: str, replicas: Iterable[str]) -> None:
    """Note the ids of an application's replicas."""
    _RUNNING[app] = tuple(sorted(replicas))


def running(app: str) -> tuple[str, ...]:
    """Ids of an application's replicas."""
    return _RUNNING.get(app, ())
