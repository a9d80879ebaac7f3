"""An engine works in the process that loaded it: forks of it and pickled copies are refused, with what to do instead.

A forked process has the memory of its parent but none of the threads that compute, prepare and step, and would wait for
them for ever. Knows process ids; knows nothing of models.
"""

from __future__ import annotations

import os
from typing import NoReturn

from corellm.errors import OtherProcessError

_WAY_OUT = (
    'start processes with "spawn" (multiprocessing.get_context("spawn")), and load the model in the one that uses it'
)
_process: int | None = None
"""Of the first engine."""


def claim_process() -> None:
    """Have engines work in this process from now on.

    Raises:
        OtherProcessError: as `check_process`.
    """
    global _process
    check_process()
    _process = os.getpid()


def check_process() -> None:
    """Refuse work in a process that was forked off one with an engine.

    Raises:
        OtherProcessError: this is one.
    """
    if _process is not None and _process != os.getpid():
        raise OtherProcessError(
            f"this process ({os.getpid()}) was forked off one that had loaded a model ({_process}); torch's threads "
            f"did not come along, so that nothing can be computed here; {_WAY_OUT}"
        )


class NotPicklable:
    """What cannot be sent to another process, or copied."""

    def __reduce__(self) -> NoReturn:
        """Told instead of pickled.

        Raises:
            OtherProcessError: always.
        """
        raise OtherProcessError(
            f"{type(self).__name__} cannot be pickled or copied: it holds threads and a model in memory; {_WAY_OUT}"
        )
