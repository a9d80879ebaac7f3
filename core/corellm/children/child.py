"""The parent's side: a child process that is started when it is asked, and killed when it does not answer in time.

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
"""For starting Python and its imports, also on a machine that is busy."""

MAX_ANSWER_BYTES = 1 << 28


class ChildError(Exception):
    """The child did not answer; the next question starts another one."""


class ChildTimeoutError(ChildError):
    """The child was killed because its time was up."""


class RefusedError(Exception):
    """The child's answer is that it cannot: its own words, which are those of its input."""


class Child:
    """A child process that answers questions.

    Args:
        module: what it runs, as `python -m`: a module whose main function is `serving.serve`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._running: _Running | None = None

    def start(self) -> None:
        """Make sure that the child is there and ready.

        Raises:
            ChildError: it does not start.
        """
        if self._running is not None and not self._running.is_usable():
            self.kill()
        if self._running is None:
            self._running = _Running(self._module)
            self._exchange(None, START_SECONDS)

    def ask(self, question: Any, seconds: float) -> Any:
        """The child's answer.

        Args:
            question: JSON.
            seconds: after which the child is killed. Starting it does not count.

        Raises:
            RefusedError: the child says that it cannot.
            ChildError: it died, or its time was up.
        """
        self.start()
        reply = self._exchange(frames.encode({"seconds": seconds, "question": question}), seconds)
        if "error" in reply:
            raise RefusedError(reply["error"])
        return reply["answer"]

    def kill(self) -> None:
        """End the child, whatever it is doing. It is started again when it is asked."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def interrupt(self) -> None:
        """End the child from another thread than the one that asks it, which then gets a `ChildError`."""
        running = self._running
        if running is not None:
            running.process.kill()

    def _exchange(self, data: bytes | None, seconds: float) -> Any:
        """Send and receive one frame. Where that is left half done, the stream is of no use any more."""
        assert self._running is not None
        try:
            return self._running.exchange(data, time.monotonic() + max(seconds, 0.0))
        except TimeoutError as error:
            self.kill()
            raise ChildTimeoutError(f"no answer within {seconds:.1f} s") from error
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
            # -P: nothing from the working directory; a session of its own: Ctrl-C is for the parent
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
        """Whether it runs, and is ours: after a fork it is still the parent's."""
        return self._pid == os.getpid() and self.process.poll() is None

    def exchange(self, data: bytes | None, deadline: float) -> Any:
        if data is not None:
            self.socket.settimeout(_left(deadline))
            self.socket.sendall(data)

        def receive(count: int) -> bytes:
            self.socket.settimeout(_left(deadline))
            return self.socket.recv(count)

        return frames.read(receive, MAX_ANSWER_BYTES)


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _end(ours: socket.socket, process: subprocess.Popen[bytes], pid: int) -> None:
    ours.close()
    if pid != os.getpid():
        process.returncode = 0  # another process's child: not to be killed, waited for or warned of here
        return
    process.kill()
    process.wait()
