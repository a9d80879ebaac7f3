"""The child's side: answer questions from standard input until it ends, within limits.

The process ends with its parent, whose end closes standard input. While it answers, the kernel's timer ends it even
inside a computation that Python cannot interrupt, so it never outlives a killed parent for long.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

from corellm.children import frames

MAX_QUESTION_BYTES = 1 << 29
_GRACE_SECONDS = 1.0
"""The parent kills at the deadline; the timer is for a parent that cannot."""


def serve(answer: Callable[[Any], Any], *, max_memory: int) -> None:
    """Answer questions until standard input ends.

    Args:
        answer: from a question to its answer, both JSON; a ValueError is an answer too: it is told to the parent.
        max_memory: bytes of address space this process may have.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = max_memory if hard == resource.RLIM_INFINITY else min(max_memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        _write(frames.encode("ready"))
        while True:
            asked = frames.read(lambda count: os.read(0, count), MAX_QUESTION_BYTES)
            signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + _GRACE_SECONDS)
            reply = _reply(answer, asked["question"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            _write(reply)


def _reply(answer: Callable[[Any], Any], question: Any) -> bytes:
    try:
        return frames.encode({"answer": answer(question)})
    except MemoryError:
        return frames.encode({"error": "it takes too much memory"})
    except (ValueError, RecursionError) as error:
        return frames.encode({"error": str(error)})


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
