"""The parent's side: a child process that starts with the first request and is killed if it takes too long.

Knows nothing of what the child does. Not for several threads at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

from corellm.children import frames
from corellm.children.memory import SharedMemory

START_SECONDS = 60.0
"""Time limit for starting Python and its imports, also on a busy machine."""

_END_SECONDS = 5.0
"""How long to wait for a child that was killed."""

MAX_REPLY_BYTES = 1 << 28

_ENVIRONMENT = frozenset({"LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TZ"})
"""What a child inherits: what Python and its libraries need to be found, and none of the secrets."""


_SETTINGS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PILLOW_BLOCKS_MAX": "4"}
"""A library's threads would reserve memory, which is limited, and compete with the parent's. Pillow keeps some memory
for the next image: fresh memory takes longer than decoding into it."""


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
        arguments: its command line.
        max_reply_bytes: the longest message to take from it; read whole, it takes many times the memory.
    """

    def __init__(self, module: str, *arguments: str, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._module, self._arguments, self._max_reply_bytes = module, arguments, max_reply_bytes
        self._running: _Running | None = None
        self.busy_since: float | None = None
        """When its borrower made its first call."""
        self._interrupted: ChildError | None = None
        """What its borrower gets, since `interrupt`."""

    def start(self) -> None:
        """Start the child and wait until it is ready, unless it runs already; one that dies meanwhile is tried again.

        Raises:
            ChildError: it does not start, or its borrower was interrupted.
            OSError: no process can be made.
        """
        if self._interrupted is not None:
            raise self._interrupted
        if self._running is not None and not self._running.is_usable():
            self.kill()
        if self._running is None:
            try:
                self._start_once()
            except ChildTimeoutError:
                raise
            except ChildError:
                if self._interrupted is not None:
                    raise
                self._start_once()

    def _start_once(self) -> None:
        self._running = _Running(self._module, *self._arguments)
        if self._interrupted is not None:  # set by a thread that may not have seen the process
            self.kill()
            raise self._interrupted
        self._exchange(None, START_SECONDS)
        self._running.is_ready = True

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
        if self.busy_since is None:
            self.busy_since = time.monotonic()
        reply = self._exchange(frames.encode({"seconds": seconds, "request": request}), seconds)
        if isinstance(reply, dict) and "result" in reply:
            return reply["result"]
        if isinstance(reply, dict) and "error" in reply:
            raise RefusedError(str(reply["error"]))
        self.kill()
        raise ChildError(f"{self._module} sent something that is no reply")

    @property
    def memory(self) -> SharedMemory:
        """Memory that is shared with the child since its start, until it is killed."""
        assert self._running is not None, "start it first"
        return self._running.memory

    def trim_memory(self) -> None:
        """Give back what an unusually large request or result took of the shared memory; its bytes are lost.

        A child that made the memory larger than can be mapped is killed.
        """
        if self._running is not None:
            try:
                self._running.memory.trim()
            except (OSError, ValueError):
                self.kill()

    def kill(self) -> None:
        """End the child, whatever it is doing; the next request starts another."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def lent(self) -> None:
        """Begin anew, for another borrower."""
        if self._interrupted is not None:
            self.kill()  # it may not have ended yet
        self.busy_since = self._interrupted = None

    def interrupt(self, error: ChildError) -> None:
        """End the child from another thread; the borrower's thread gets an error, now and in further calls."""
        self._interrupted = error
        running = self._running
        if running is not None:
            running.process.kill()

    def _exchange(self, data: bytes | None, seconds: float) -> Any:
        """Send and receive one frame; kill the child if that fails, as the rest of a frame may follow."""
        assert self._running is not None
        try:
            deadline = time.monotonic() + max(seconds, 0.0)
            return self._running.exchange(data, deadline, self._max_reply_bytes)
        except TimeoutError as error:
            self.kill()
            raise ChildTimeoutError(f"no result within {seconds:.1f} s") from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            process = self._running.process
            self.kill()
            if self._interrupted is not None:
                raise self._interrupted from error
            raise ChildError(f"{self._module} ended with status {process.returncode}") from error
        except BaseException:
            self.kill()
            raise


class _Running:
    """One process: a socket is its standard input, shared memory its standard output."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.memory = SharedMemory.create()
        self.socket, theirs = socket.socketpair()
        try:
            # -P: import nothing from the working directory; own session: Ctrl-C goes to the parent only
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=theirs.fileno(),
                stdout=self.memory.descriptor,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT} | _SETTINGS,
            )
        except BaseException:
            self.socket.close()
            self.memory.close()
            raise
        finally:
            theirs.close()
        self._pid = os.getpid()
        self.is_ready = False
        self.end = weakref.finalize(self, _end, self.socket, self.memory, self.process, self._pid)

    def is_usable(self) -> bool:
        """Whether it has started, runs and belongs to this process: after a fork it still belongs to the parent."""
        return self.is_ready and self._pid == os.getpid() and self.process.poll() is None

    def exchange(self, data: bytes | None, deadline: float, max_reply_bytes: int) -> Any:
        if data is not None:
            self.socket.settimeout(_left(deadline))
            self.socket.sendall(data)

        def receive(count: int) -> bytes:
            self.socket.settimeout(_left(deadline))
            return self.socket.recv(count)

        return frames.read(receive, max_reply_bytes)


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _end(ours: socket.socket, memory: SharedMemory, process: subprocess.Popen[bytes], pid: int) -> None:
    if pid == os.getpid():
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # an interrupt may have left Popen's lock locked for ever
            process.wait(_END_SECONDS)
    else:
        process.returncode = 0  # another process's child: Popen must not wait for it or warn of it here
    ours.close()
    memory.close()
