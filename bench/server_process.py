"""`corellm serve` in a process of its own, and the processor time that it and its engines take. Knows no requests."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: tuple[str, int]
    api: int
    """Process id."""
    engines: tuple[int, ...]
    """Process ids of its engines."""

    def cpu_times(self) -> tuple[float, float]:
        """CPU seconds of the API process and of the engines', so far."""
        return _cpu_time(self.api), sum(map(_cpu_time, self.engines))


def _cpu_time(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # Linux's clock of a process


@contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Serve a model as `m`, on a free port, with further options of the command."""
    command = [
        sys.executable, "-m", "corellm", "serve", str(model), "--served-model-name", "m", "--port", "0",
        "--log-level", "warning", *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://([\d.]+):(\d+)/v1", process.stdout.readline())
            assert found is not None, "the server did not start"
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
            engines = [pid for pid in children if b"engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            yield Server((found[1], int(found[2])), process.pid, tuple(engines))
        finally:
            process.terminate()
