"""Python code that a checkpoint brings: it runs when the operator said so, and no one is asked.

Knows transformers' question on standard input, which a piped "y" or the first line of a conversation would answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_loads = 0
_seconds_to_answer = 0
"""Transformers' own wait for an answer, to be set again after the last load."""


@contextmanager
def no_questions() -> Iterator[None]:
    """Meanwhile transformers raises instead of asking whether it may run a checkpoint's code.

    It asks wherever a caller left `trust_remote_code` out, an adapter's own call for instance.
    """
    global _loads, _seconds_to_answer
    from transformers import dynamic_module_utils as transformers_code

    with _lock:
        if _loads == 0:
            _seconds_to_answer = transformers_code.TIME_OUT_REMOTE_CODE
        transformers_code.TIME_OUT_REMOTE_CODE = 0
        _loads += 1
    try:
        yield
    finally:
        with _lock:
            _loads -= 1
            if _loads == 0:
                transformers_code.TIME_OUT_REMOTE_CODE = _seconds_to_answer
