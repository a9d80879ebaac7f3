"""Keeps transformers from asking on standard input whether it may run a checkpoint's Python code.

A piped "y", or the first line of a conversation, would count as consent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_loads = 0
_time_out = 0
"""Transformers' own `TIME_OUT_REMOTE_CODE`, restored after the last load."""


@contextmanager
def no_questions() -> Iterator[None]:
    """Make transformers raise instead of asking, inside the block; safe for several threads.

    It asks if a caller does not pass `trust_remote_code`, for instance an adapter.
    """
    global _loads, _time_out
    from transformers import dynamic_module_utils as transformers_code

    with _lock:
        if _loads == 0:
            _time_out = transformers_code.TIME_OUT_REMOTE_CODE
        transformers_code.TIME_OUT_REMOTE_CODE = 0
        _loads += 1
    try:
        yield
    finally:
        with _lock:
            _loads -= 1
            if _loads == 0:
                transformers_code.TIME_OUT_REMOTE_CODE = _time_out
