"""Refuses to use an engine in another process than the one that loaded it: after a fork, or pickled.

A forked process has its parent's memory but none of its threads, and would wait for them for ever. Knows process ids;
knows nothing of models.
"""

from __future__ import annotations

import os
from typing import NoReturn

from corellm.errors import OtherProcessError

_WAY_OUT = (
    'start processes with "spawn" (multiprocessing.get_context("spawn")), and load the model in the one that uses it'
)
_process: int | None = None
"""Id of the process with the first engine."""


def claim_process() -> None:
    """Bind engines to this process.

    Raises:
        OtherProcessError: see `check_process`.
    """
    global _process
    check_process()
    _process = os.getpid()


def check_process() -> None:
    """Raise in a process that was forked from one with an engine.

    Raises:
        OtherProcessError: this process is a fork.
    """
    if _process is not None and _process != os.getpid():
        raise OtherProcessError(
            f"this process ({os.getpid()}) was forked from one that had loaded a model ({_process}); torch's threads "
            f"are missing here, so nothing can be computed; {_WAY_OUT}"
        )


class NotPicklable:
    """Base class of objects that cannot be pickled or copied."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            OtherProcessError: always.
        """
        raise OtherProcessError(
            f"{type(self).__name__} cannot be pickled or copied: it holds threads and a model in memory; {_WAY_OUT}"
        )
