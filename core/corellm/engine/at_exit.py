"""Stops engines in other threads before the interpreter exits.

An exiting interpreter ends threads wherever they are, and torch's C++ in such a thread aborts the process. So every
engine is told to stop, and its current step is waited for, while everything still works.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from weakref import WeakMethod

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds to wait for current steps; a device that hangs does not keep the process alive."""


_stops: set[WeakMethod[Callable[[float], bool]]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stops.clear)  # the threads stayed in the parent


def stop_at_exit(stop: Callable[[float], bool]) -> None:
    """Call a method when the interpreter exits, if its object still exists.

    Args:
        stop: stops after the current step; returns whether that ended within the given seconds.
    """
    _stops.add(WeakMethod(stop, _stops.discard))


@atexit.register
def _stop_all() -> None:
    deadline = time.monotonic() + PATIENCE
    for stop in [reference() for reference in list(_stops)]:
        if stop is not None and not stop(max(0.0, deadline - time.monotonic())):
            logger.warning("a step still runs after %.0f s; the process exits without it", PATIENCE)
    _stops.clear()  # a WeakMethod that outlives its module prints an error
