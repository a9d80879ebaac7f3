"""The file with the results: whole lines only, whatever ends the process.

A line that was appended survives the end of the process; the disk has it for certain once the file is closed. What was
appended before and not closed may be lost if the machine loses power. Knows files and locks; knows no requests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from corellm.errors import ConfigError, CorellmError
from corellm_server.batch.results import START, Result, decoded


class OutputError(CorellmError):
    """The results cannot be written."""


class OutputFile(contextlib.AbstractContextManager["OutputFile"]):
    """Opens or makes the file, and holds it against other processes that would write to it.

    Args:
        path: of the file.

    Raises:
        ConfigError: it cannot be written, or another process does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"the output {path} is not a file; name one, e.g. results.jsonl")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"cannot write the output {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise ConfigError(f"the output {path} is written by another process; wait for its end") from error
        self._num_bytes = os.fstat(self._descriptor).st_size

    def __exit__(self, *_: object) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(self._descriptor)

    def results(self) -> Iterator[Result]:
        """The results of earlier runs; the beginning of a line whose end was never written is cut off.

        Raises:
            ConfigError: the file has something else; nothing was changed.
        """
        position = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and (line.startswith(START) or START.startswith(line)):
                    break
                result = decoded(line)
                if result is None or not line.endswith(b"\n"):
                    raise ConfigError(f"line {number} of the output {self.path} is not a result; name another file")
                yield result
                position += len(line)
        self._cut(position)

    def append(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OutputError: it cannot be written; the file ends with the line before.
        """
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self._cut(self._num_bytes)
            raise self._failed(error) from error
        self._num_bytes += len(line)

    def _cut(self, num_bytes: int) -> None:
        os.ftruncate(self._descriptor, num_bytes)
        self._num_bytes = num_bytes

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write the output {self.path}: {error.strerror}")
