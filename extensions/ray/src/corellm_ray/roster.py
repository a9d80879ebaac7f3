"""Which replicas take requests now, as this process's routers were told, and which one a request went to.

A module of its own: Ray Serve makes a router of a copy of its class, and of all that is in the class's module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

_RUNNING: dict[str, tuple[str, ...]] = {}
_READERS: dict[str, Callable[[str, str], None]] = {}


def note(app: str, replicas: Iterable[str]) -> None:
    """Note the ids of an application's replicas."""
    _RUNNING[app] = tuple(sorted(replicas))


def running(app: str) -> tuple[str, ...]:
    """Ids of an application's replicas."""
    return _RUNNING.get(app, ())


def listen(name: str, on_placed: Callable[[str, str], None]) -> None:
    """Have a function called with the number of each request of a reader, and the replica's id that it goes to.

    It is called in the routers' thread. Readers' names are `name`, a dot and a number.
    """
    _READERS[name] = on_placed


def placed(reader: str, number: str, replica: str) -> None:
    """Tell a reader which replica a request of its own goes to."""
    if (on_placed := _READERS.get(reader.partition(".")[0])) is not None:
        on_placed(number, replica)
