"""The file with the requests, one per line, which is never in memory as a whole.

Knows the format of a line. A request's body is kept as it is: the gate checks it, like that of any other request.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from corellm.errors import ConfigError, CorellmError
from corellm_server.json_text import VALUE_BYTES, count_values

_BOM = b"\xef\xbb\xbf"
_MAX_CUSTOM_ID = 512
_MAX_OTHER_BYTES = 1 << 16
"""Most bytes of a line beside its body."""


class InputError(CorellmError):
    """The requests cannot be read any further."""


@dataclass(frozen=True)
class BatchRequest:
    """What a line asks for."""

    line: int
    """Its number in the file, from 1."""
    custom_id: str | None
    """None if the line has none, or that of another line."""
    url: str = ""
    body: bytes = b""
    wrong: str | None = None
    """Why there is no such request."""
    load: Callable[[], BatchRequest] | None = field(default=None, compare=False)
    """Makes the request with its body, where that is in a file of its own."""
    size: int = 0
    """Of that body, in bytes."""

    @cached_property
    def num_bytes(self) -> int:
        """Memory that the gate counts for its body."""
        return (self.size or len(self.body)) + VALUE_BYTES * count_values(self.body)

    def loaded(self) -> BatchRequest:
        """The request with its body, or with why it has none."""
        return self if self.load is None else self.load()


class Input(Protocol):
    """What has requests: a file of them, or what they are made of."""

    path: Path

    def requests(self) -> Iterator[BatchRequest]:
        """All requests, from the first; bodies that are in files of their own are not read."""


class _Line(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    stream: Any = None


class InputFile(contextlib.AbstractContextManager["InputFile"]):
    """Reads the requests, as often as wanted.

    Args:
        path: of a file that stays as it is meanwhile.
        max_body_bytes: of a request; a longer line is skipped, not read.

    Raises:
        ConfigError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], max_body_bytes: int) -> None:
        self.path, self._max_bytes = Path(path), max_body_bytes + _MAX_OTHER_BYTES
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"the input {path} is not a file; it is read twice, so it can be no pipe")
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot read the input {path}: {error.strerror}") from error
        self._ids = sqlite3.connect("", isolation_level=None)  # a temporary file: memory does not grow with the input
        self._ids.execute("PRAGMA journal_mode = OFF")
        self._ids.execute("CREATE TABLE ids (id TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._ids.close()

    def requests(self) -> Iterator[BatchRequest]:
        """All requests, from the first; lines with nothing on them are none. One iteration at a time.

        Raises:
            InputError: the file, or the temporary one with the custom_ids, failed.
        """
        try:
            self._file.seek(0)
            for number, line in _lines(self._file, self._max_bytes):
                if line is None:
                    yield BatchRequest(number, None, wrong=f"the line has more than {self._max_bytes} bytes")
                elif line:
                    yield self._request(number, line)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"cannot read the input {self.path}, or keep its custom_ids in a temporary file (TMPDIR): {error}"
            ) from error

    def _request(self, number: int, data: bytes) -> BatchRequest:
        try:
            line = msgspec.json.decode(data, type=_Line)
        except msgspec.ValidationError:
            return BatchRequest(number, None, wrong='the line must be an object, like {"custom_id": ...}')
        except (msgspec.DecodeError, RecursionError):
            return BatchRequest(number, None, wrong="the line is not JSON")
        if not isinstance(line.custom_id, str) or not 0 < len(line.custom_id) <= _MAX_CUSTOM_ID:
            told = f"custom_id must be a string of 1 to {_MAX_CUSTOM_ID} characters"
            return BatchRequest(number, None, wrong=told)
        first = self._first_line(line.custom_id, number)
        if first != number:
            return BatchRequest(number, None, wrong=f"custom_id {line.custom_id!r:.100} is that of line {first}")
        wrong = _wrong(line)
        if wrong is not None:
            return BatchRequest(number, line.custom_id, wrong=wrong)
        return BatchRequest(number, line.custom_id, line.url, bytes(line.body))

    def _first_line(self, custom_id: str, number: int) -> int:
        """The first line with a custom_id."""
        told = "INSERT INTO ids VALUES (?, ?) ON CONFLICT DO UPDATE SET line = line RETURNING line"
        first: int = self._ids.execute(told, (custom_id, number)).fetchone()[0]
        return first


def _wrong(line: _Line) -> str | None:
    """What is wrong with a line, beside its custom_id."""
    if line.method != "POST":
        return f'method must be "POST", got {line.method!r:.100}'
    if not isinstance(line.url, str) or not line.url.startswith("/"):
        return f'url must be a path like "/v1/chat/completions", got {line.url!r:.100}'
    try:
        body = msgspec.json.decode(line.body, type=_Body)
    except (msgspec.DecodeError, RecursionError):
        return "body must be an object: the request"
    return "stream: true is not for files; leave it out" if body.stream is True else None


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines without space around them, with their numbers; None for one that is too long."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, (line.removeprefix(_BOM) if number == 1 else line).strip()
