"""A directory of images as requests: each image with a question is a conversation.

Its layout is that of `datasets`' `imagefolder`. Knows files and columns; runs nothing.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from corellm.errors import ConfigError, MediaError
from corellm.prompts import is_unicode
from corellm_server.batch.input_file import BatchRequest, InputError
from corellm_server.files_below import opened_below

_IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
_TABLES = ("metadata.jsonl", "metadata.csv")
_FILE = "file_name"


class ImageFolder(contextlib.AbstractContextManager["ImageFolder"]):
    """Reads a directory as requests, as often as wanted; an image is read as its request is loaded.

    A request's `custom_id` is the image's name within the directory.

    Args:
        path: of a directory that stays as it is meanwhile.
        model: the name in each request.
        question: of all images in the directory and those in it, in the order of their names; None for those that its
            `metadata.jsonl` or `metadata.csv` names, with a question each.
        column: of the questions.
        fields: further fields of each request.
        max_bytes: of a request; the image of a larger one is not read.

    Raises:
        ConfigError: the directory cannot be read, or has no images or no questions.
    """

    def __init__(
        self, path: str, model: str, question: str | None, column: str, fields: Mapping[str, Any], max_bytes: int
    ) -> None:
        self.path, self._root, self._max_bytes = Path(path), Path(path).resolve(), max_bytes
        self._model, self._question, self._column, self._fields = model, question, column, fields
        tables = [self.path / name for name in _TABLES if (self.path / name).is_file()]
        if question is None and len(tables) != 1:
            found = "both " + " and ".join(_TABLES) if tables else "neither " + " nor ".join(_TABLES)
            raise ConfigError(
                f"the input {path} is a directory that has {found}: give one --question for all of its images, or one "
                f"of these files with the columns {_FILE} and {column}"
            )
        self._table = None if question is not None else tables[0]
        if self._table is None and next(self._questions(), None) is None:
            raise ConfigError(f"the input {path} has no image: no file in it ends in {', '.join(sorted(_IMAGES))}")
        if self._table is not None and self._table.suffix == ".csv":
            names = next(_rows_of_csv(self._table), [])
            for name in (_FILE, column):
                if name not in names:
                    raise ConfigError(f"{self._table} has no column {name!r:.100}; it has {', '.join(names) or 'none'}")

    def __exit__(self, *_: object) -> None:
        """Nothing stays open."""

    def requests(self) -> Iterator[BatchRequest]:
        """All requests, from the first.

        Raises:
            InputError: the directory failed.
        """
        seen: set[str] = set()
        try:
            for number, (name, question) in enumerate(self._questions(), start=1):
                yield self._request(number, name, question, seen)
        except OSError as error:
            raise InputError(f"cannot read the input {self.path}: {error}") from error

    def _questions(self) -> Iterator[tuple[Any, Any]]:
        """The name of each image, and its question."""
        if self._table is None:
            files = (file for file in self.path.rglob("*") if file.suffix.lower() in _IMAGES and file.is_file())
            for name in sorted(file.relative_to(self.path).as_posix() for file in files):
                yield name, self._question
            return
        for row in _lines_of_csv(self._table) if self._table.suffix == ".csv" else _lines_of_json(self._table):
            yield (row.get(_FILE), row.get(self._column)) if isinstance(row, dict) else (None, None)

    def _request(self, number: int, name: Any, question: Any, seen: set[str]) -> BatchRequest:
        if not isinstance(name, str) or not name:
            return BatchRequest(number, None, wrong=f"{_FILE} must be the name of an image, got {name!r:.100}")
        if not is_unicode(name):
            return BatchRequest(number, None, wrong=f"{_FILE} {name!r:.100} is not Unicode; rename the image")
        if name in seen:
            return BatchRequest(number, None, wrong=f"{_FILE} {name!r:.100} is that of an earlier row")
        seen.add(name)
        if not isinstance(question, str) or not question:
            return BatchRequest(number, name, wrong=f"{self._column} must be text, got {question!r:.100}")
        size = self._size(name)
        if size is None:
            return BatchRequest(number, name, wrong=self._absent(name))
        if size > self._max_bytes:
            return BatchRequest(number, name, wrong=self._too_large(name))
        # its text in base64 is a third longer
        return BatchRequest(number, name, load=partial(self._loaded, number, name, question), size=4 * size // 3)

    def _loaded(self, number: int, name: str, question: str) -> BatchRequest:
        """The request about an image, which may have changed since it was found."""
        try:
            with opened_below(self._root, name) as file:
                data = file.read(self._max_bytes + 1)
        except OSError as error:
            return BatchRequest(number, name, wrong=f"the image {name!r:.100} cannot be read: {error.strerror}")
        except (MediaError, RuntimeError, ValueError):
            return BatchRequest(number, name, wrong=self._absent(name))
        if len(data) > self._max_bytes:
            return BatchRequest(number, name, wrong=self._too_large(name))
        url = "data:application/octet-stream;base64," + base64.b64encode(data).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        body = {"model": self._model, **self._fields, "messages": [{"role": "user", "content": content}]}
        return BatchRequest(number, name, "/v1/chat/completions", json.dumps(body).encode())

    def _absent(self, name: str) -> str:
        return f"there is no image {name!r:.100} in the directory"

    def _too_large(self, name: str) -> str:
        return f"the image {name!r:.100} has more than the {self._max_bytes} bytes of a request"

    def _size(self, name: str) -> int | None:
        """The bytes of the file of a name, if it is in the directory."""
        try:
            file = (self._root / name).resolve()
            return file.stat().st_size if file.is_relative_to(self._root) and file.is_file() else None
        except (OSError, RuntimeError, ValueError):  # no name that a file may have; a link to itself
            return None


def _lines_of_csv(path: Path) -> Iterator[dict[str, str]]:
    """What each row after the first has, by column."""
    rows = _rows_of_csv(path)
    names = next(rows, [])
    for row in rows:
        yield dict(zip(names, row, strict=False))


def _rows_of_csv(path: Path) -> Iterator[list[str]]:
    """The rows that are not empty; the first one names columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from filter(None, csv.reader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not CSV in UTF-8: {error}") from error


def _lines_of_json(path: Path) -> Iterator[Any]:
    """What each line has that is not empty; None of one that is not JSON."""
    with path.open("rb") as file:
        for line in filter(None, map(bytes.strip, file)):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None
