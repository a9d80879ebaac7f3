"""A trace of what the model runs, by torch's profiler: a JSON file for Perfetto or `chrome://tracing`.

It shows operators of the thread that starts the trace, which must be the one that runs the steps, and all kernels of a
GPU. Torch has one profiler per process, and stopping it in another thread crashes: both are refused here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from corellm.errors import InvalidParameterError

logger = logging.getLogger(__name__)


class Trace:
    """A trace that runs from its construction until `stop`.

    Args:
        file: the file to write; None for a name with the time, in the current directory.

    Raises:
        InvalidParameterError: the file cannot be written, or this process is tracing already.
    """

    file: Path
    """The file to write."""
    _running: ClassVar[Trace | None] = None

    def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if Trace._running is not None:
            raise InvalidParameterError(
                f"a trace into {Trace._running.file} is running, and a process has one at a time; end it first"
            )
        self.file = Path(time.strftime("corellm-trace-%Y%m%d-%H%M%S.json") if file is None else file).absolute()
        if self.file.is_dir() or not self.file.parent.is_dir():
            raise InvalidParameterError(
                f"trace_file must be a file in a directory that exists, got {str(file)!r}", param="trace_file"
            )
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile: Any = profile(activities=activities)
        self._profile.start()
        self._thread = threading.get_ident()
        Trace._running = self

    def stop(self) -> Path:
        """Write the trace, log its file and return it.

        Raises:
            InvalidParameterError: this is not the thread that started it.
        """
        if threading.get_ident() != self._thread:
            raise InvalidParameterError("a trace must be ended by the thread that started it")
        Trace._running = None
        self._profile.stop()
        self._profile.export_chrome_trace(str(self.file))
        logger.info("the trace is in %s; https://ui.perfetto.dev shows it", self.file)
        return self.file

    def close(self) -> None:
        """Write the trace; from another thread, discard it."""
        if threading.get_ident() == self._thread:
            self.stop()
        else:
            Trace._running = None
            logger.warning("the trace into %s was not ended by the thread that started it, and is lost", self.file)
