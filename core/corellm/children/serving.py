"""The child's side: serve requests from standard input, within limits on time and memory.

The process ends when its parent does, which closes standard input. During a request kernel timers end it even inside
a computation that Python cannot interrupt, so it never outlives a killed parent for long.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from corellm.children import frames
from corellm.children.memory import SharedMemory

MAX_REQUEST_BYTES = 1 << 29
_GRACE_SECONDS = 1.0
"""The parent kills the child at the deadline; the timers are for a parent that was killed itself."""
_THREADS = 2
"""Processor time counts the seconds of every thread: a request gets what this many threads use until the deadline."""

_MEMORY = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
"""Private memory where the kernel counts it: address space also counts libraries and what is shared."""


def serve(handle: Callable[[Any], Any], *, max_memory: int) -> None:
    """Serve requests until standard input ends.

    Args:
        handle: returns the result of a request, both JSON; the message of a ValueError is sent to the parent.
        max_memory: limit on this process's memory in bytes.
    """
    limit_memory(max_memory)
    serve_with_memory(lambda request, _: handle(request))


def limit_memory(most: int) -> None:
    """Limit this process's memory to `most` bytes; a later call may raise the limit again."""
    _limit(_MEMORY, most)


def serve_with_memory(handle: Callable[[Any, SharedMemory], Any]) -> None:
    """Do as `serve`, with the memory that is shared with the parent: standard output, which is not for printing."""
    _limit(resource.RLIMIT_CORE, 0)
    for ending in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(ending, signal.SIG_DFL)
    parent, memory = socket.socket(fileno=os.dup(0)), SharedMemory(os.dup(1))
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent ended
        parent.sendall(frames.encode("ready"))
        while True:
            message = frames.read(parent.recv, MAX_REQUEST_BYTES)
            _set_timers(message["seconds"] + _GRACE_SECONDS)
            reply = _reply(handle, message["request"], memory)
            _set_timers(0)
            parent.sendall(reply)


def _limit(limited: int, most: int) -> None:
    _, hard = resource.getrlimit(limited)
    most = min(most, sys.maxsize)
    resource.setrlimit(limited, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _set_timers(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, _THREADS * seconds)


def _reply(handle: Callable[[Any, SharedMemory], Any], request: Any, memory: SharedMemory) -> bytes:
    try:
        return frames.encode({"result": handle(request, memory)})
    except MemoryError:
        return frames.encode({"error": "it takes too much memory"})
    except (ValueError, RecursionError) as error:
        return frames.encode({"error": str(error)})
