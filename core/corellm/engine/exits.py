"""Ends steps that run in other threads before the interpreter exits.

The interpreter stops threads wherever they are when they next want it, and torch's C++ in such a thread aborts the
process. So what steps an engine is told to stop, and waited for, while everything still works.
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
"""Seconds to wait for steps that run; a device that hangs does not keep the process."""


_stops: set[WeakMethod[Callable[[float], bool]]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stops.clear)  # the threads stayed in the parent


def stop_at_exit(stop: Callable[[float], bool]) -> None:
    """Call a method when the interpreter exits, if its object is still there.

    Args:
        stop: has the step that runs be the last one; gives whether it ended within so many seconds.
    """
    _stops.add(WeakMethod(stop, _stops.discard))


@atexit.register
def _stop_all() -> None:
    deadline = time.monotonic() + PATIENCE
    for stop in [reference() for reference in list(_stops)]:
        if stop is not None and not stop(max(0.0, deadline - time.monotonic())):
            logger.warning("a step still runs after %.0f s; the process exits without waiting for it", PATIENCE)
