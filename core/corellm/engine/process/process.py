"""The engine's process, seen from the API process: started, watched, ended.

Knows the command line, file descriptors and processors; knows no messages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corellm.engine.process.channel import Channel

END_SECONDS = 3.0
"""How long after its last sign of life an engine that is told to end may still be in a step. A server that was told to
end has at most four seconds."""


@dataclass(frozen=True)
class Share:
    """One engine's part of a machine that several engines of a server divide."""

    number: int
    """Number of the engine, from 0."""
    parts: int
    """Number of engines: each has so much less of the host's memory."""
    cpus: frozenset[int]
    """Processors that it runs on."""
    num_threads: int
    """Threads that compute, where a quota allows fewer than it has processors. `OMP_NUM_THREADS` goes first."""


class Process:
    """A process with the engine's loop, which ends when this process does.

    Args:
        share: its part of the machine; None for all that this process may use.
    """

    def __init__(self, share: Share | None = None) -> None:
        ours, theirs = socket.socketpair()
        read_end, self._lifeline = os.pipe()
        self.channel = Channel(ours)
        try:
            # -P: import nothing from the working directory; own session: Ctrl-C goes to this process only
            with _within(share) as environment:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", f"{__package__}.engine_main", str(theirs.fileno())],
                    stdin=read_end,
                    stdout=2,  # what libraries print must not get into this process's output
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=environment,
                )
        except BaseException:
            os.close(self._lifeline)
            self.channel.close()
            raise
        finally:
            os.close(read_end)
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def end(self, seconds: float) -> None:
        """Have it end after its step in flight; kill it if that takes longer than `seconds`."""
        self.channel.finish()
        self.wait(seconds)

    def wait(self, seconds: float) -> str:
        """Wait for its end, and kill it if that takes longer than `seconds`; returns how it ended."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def close(self) -> None:
        """Kill it if it still runs, and close the descriptors."""
        self.wait(0)
        self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


@contextmanager
def _within(share: Share | None) -> Iterator[dict[str, str] | None]:
    """Have processes that this thread starts run on a share's processors; yields their environment, None for ours.

    Libraries count processors as they are loaded, so a process must have its own from the start.
    """
    if share is None:
        yield None
        return
    before = os.sched_getaffinity(0)  # of this thread
    os.sched_setaffinity(0, share.cpus)
    try:
        fewer = {"OMP_NUM_THREADS": str(share.num_threads)} if share.num_threads < len(share.cpus) else {}
        yield {**fewer, **os.environ}
    finally:
        os.sched_setaffinity(0, before)
