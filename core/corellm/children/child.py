"""The parent's side: a child process that starts with the first request and is killed if it takes too long.

Knows nothing of what the child does. Not for several threads at once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

from corellm.children import frames

START_SECONDS = 60.0
"""Time limit for starting Python and its imports, also on a busy machine."""

MAX_REPLY_BYTES = 1 << 28


class ChildError(Exception):
    """The child returned no result; the next request starts another child."""


class ChildTimeoutError(ChildError):
    """The child was killed because its time was up."""


class RefusedError(Exception):
    """The child returned an error; its message may come from untrusted input."""


class Child:
    """A child process that serves requests.

    Args:
        module: run as `python -m`; it calls `serving.serve`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._running: _Running | None = None

    def start(self) -> None:
        """Start the child and wait until it is ready, unless it runs already.

        Raises:
            ChildError: it does not start.
            OSError: no process can be made.
        """
        if self._running is not None and not self._running.is_usable():
            self.kill()
        if self._running is None:
            self._running = _Running(self._module)
            self._exchange(None, START_SECONDS)

    def call(self, request: Any, seconds: float) -> Any:
        """Send a request and return the child's result.

        Args:
            request: JSON.
            seconds: time limit, after which the child is killed; starting it does not count.

        Raises:
            RefusedError: the child returned an error.
            ChildError: it died, or exceeded the time limit.
            TypeError, ValueError, RecursionError: the request is not JSON.
        """
        self.start()
        reply = self._exchange(frames.encode({"seconds": seconds, "request": request}), seconds)
        if "error" in reply:
            raise RefusedError(reply["error"])
        return reply["result"]

    def kill(self) -> None:
        """End the child, whatever it is doing; the next request starts another."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def interrupt(self) -> None:
        """End the child from another thread; the thread that waits for its result gets a `ChildError`."""
        running = self._running
        if running is not None:
            running.process.kill()

    def _exchange(self, data: bytes | None, seconds: float) -> Any:
        """Send and receive one frame; kill the child if that fails, as the rest of a frame may follow."""
        assert self._running is not None
        try:
            return self._running.exchange(data, time.monotonic() + max(seconds, 0.0))
        except TimeoutError as error:
            self.kill()
            raise ChildTimeoutError(f"no result within {seconds:.1f} s") from error
        except (OSError, EOFError, ValueError) as error:
            process = self._running.process
            self.kill()
            raise ChildError(f"{self._module} ended with status {process.returncode}") from error
        except BaseException:
            self.kill()
            raise


class _Running:
    """One process and the socket that is its standard input and output."""

    def __init__(self, module: str) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            # -P: import nothing from the working directory; own session: Ctrl-C goes to the parent only
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self._pid = os.getpid()
        self.end = weakref.finalize(self, _end, self.socket, self.process, self._pid)

    def is_usable(self) -> bool:
        """Whether it runs and belongs to this process: after a fork it still belongs to the parent."""
        return self._pid == os.getpid() and self.process.poll() is None

    def exchange(self, data: bytes | None, deadline: float) -> Any:
        if data is not None:
            self.socket.settimeout(_left(deadline))
            self.socket.sendall(data)

        def receive(count: int) -> bytes:
            self.socket.settimeout(_left(deadline))
            return self.socket.recv(count)

        return frames.read(receive, MAX_REPLY_BYTES)


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _end(ours: socket.socket, process: subprocess.Popen[bytes], pid: int) -> None:
    ours.close()
    if pid != os.getpid():
        process.returncode = 0  # another process's child: Popen must not wait for it or warn of it here
        return
    process.kill()
    process.wait()
