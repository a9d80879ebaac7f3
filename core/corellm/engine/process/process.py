"""The engine's process, seen from the API process: started, watched, ended.

Knows the command line and file descriptors; knows no messages.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from corellm.engine.process.channel import Channel

END_SECONDS = 3.0
"""How long after its last sign of life an engine that is told to end may still be in a step. A server that was told to
end has at most four seconds."""


class Process:
    """A process with the engine's loop, which ends when this process does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        read_end, self._lifeline = os.pipe()
        self.channel = Channel(ours)
        try:
            # -P: import nothing from the working directory; own session: Ctrl-C goes to this process only
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.engine_main", str(theirs.fileno())],
                stdin=read_end,
                stdout=2,  # what libraries print must not get into this process's output
                pass_fds=[theirs.fileno()],
                start_new_session=True,
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
