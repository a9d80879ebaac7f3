"""The child's side: serve requests from standard input, within limits on time and memory.

The process ends when its parent does, which closes standard input. During a request a kernel timer ends it even inside
a computation that Python cannot interrupt, so it never outlives a killed parent for long.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

from corellm.children import frames

MAX_REQUEST_BYTES = 1 << 29
_GRACE_SECONDS = 1.0
"""The parent kills the child at the deadline; the timer is for a parent that was killed itself."""


def serve(handle: Callable[[Any], Any], *, max_memory: int) -> None:
    """Serve requests until standard input ends.

    Args:
        handle: returns the result of a request, both JSON; the message of a ValueError is sent to the parent.
        max_memory: limit on this process's address space in bytes.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = max_memory if hard == resource.RLIM_INFINITY else min(max_memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent ended
        _write(frames.encode("ready"))
        while True:
            message = frames.read(lambda count: os.read(0, count), MAX_REQUEST_BYTES)
            signal.setitimer(signal.ITIMER_REAL, message["seconds"] + _GRACE_SECONDS)
            reply = _reply(handle, message["request"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            _write(reply)


def _reply(handle: Callable[[Any], Any], request: Any) -> bytes:
    try:
        return frames.encode({"result": handle(request)})
    except MemoryError:
        return frames.encode({"error": "it takes too much memory"})
    except (ValueError, RecursionError) as error:
        return frames.encode({"error": str(error)})


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
