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
    serve_files(lambda request, file: (handle(request), None))


def limit_memory(most: int) -> None:
    """Limit this process's memory to `most` bytes; a later call may raise the limit again."""
    _limit(_MEMORY, most)


def serve_files(handle: Callable[[Any, int | None], tuple[Any, int | None]]) -> None:
    """Do as `serve`, and exchange open files with requests and results.

    Args:
        handle: takes a request and the descriptor that came with it, which is closed when it returns; returns the
            result and a descriptor to send with it, which stays its own.
    """
    _limit(resource.RLIMIT_CORE, 0)
    for ending in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(ending, signal.SIG_DFL)
    parent = socket.socket(fileno=os.dup(0))
    with contextlib.suppress(EOFError, ConnectionError):  # the parent ended
        parent.sendall(frames.encode("ready"))
        while True:
            message, file = _receive(parent)
            _set_timers(message["seconds"] + _GRACE_SECONDS)
            reply, sent_along = _reply(handle, message["request"], file)
            _set_timers(0)
            if file is not None:
                os.close(file)
            sent = 0 if sent_along is None else socket.send_fds(parent, [reply], [sent_along])
            parent.sendall(memoryview(reply)[sent:])


def _limit(limited: int, most: int) -> None:
    _, hard = resource.getrlimit(limited)
    most = min(most, sys.maxsize)
    resource.setrlimit(limited, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _set_timers(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_PROF, _THREADS * seconds)


def _receive(parent: socket.socket) -> tuple[Any, int | None]:
    files: list[int] = []

    def receive(count: int) -> bytes:
        part, received, _, _ = socket.recv_fds(parent, count, 1, frames.CLOSE_ON_EXEC)
        files.extend(received)
        return part

    message = frames.read(receive, MAX_REQUEST_BYTES)
    return message, files[0] if files else None


def _reply(
    handle: Callable[[Any, int | None], tuple[Any, int | None]], request: Any, file: int | None
) -> tuple[bytes, int | None]:
    try:
        result, sent_along = handle(request, file)
        return frames.encode({"result": result}), sent_along
    except MemoryError:
        return frames.encode({"error": "it takes too much memory"}), None
    except (ValueError, RecursionError) as error:
        return frames.encode({"error": str(error)}), None
