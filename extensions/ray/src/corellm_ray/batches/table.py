"""Tables as requests: a row with a question, and perhaps an image, is a conversation. Knows columns; runs nothing."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from corellm.errors import ConfigError
from corellm_server.batch.input_file import BatchRequest, InputError

ENDINGS = (".parquet", ".csv")
_ROWS = 64
"""Rows that are in memory at once."""


class TableFile(contextlib.AbstractContextManager["TableFile"]):
    """Reads a table as requests, as often as wanted.

    A request's `custom_id` is that of its row's column of this name, else the number of the row.

    Args:
        path: of a file that stays as it is meanwhile.
        model: the name in each request.
        question, image: columns; None for no images.
        fields: further fields of each request.

    Raises:
        ConfigError: the file cannot be read, or has no such column.
    """

    def __init__(self, path: str, model: str, question: str, image: str | None, fields: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._is_parquet = self.path.suffix == ".parquet"
        self._model, self._question, self._image, self._fields = model, question, image, fields
        try:
            with self._opened() as opened:
                names = (
                    opened.schema_arrow.names
                    if isinstance(opened, pyarrow.parquet.ParquetFile)
                    else opened.schema.names
                )
        except (OSError, pyarrow.ArrowException) as error:
            raise ConfigError(f"cannot read the input {path}: {error}") from error
        if question not in names:
            raise ConfigError(f"the input {path} has no column {question!r:.100}; it has {', '.join(names)}")

    def __exit__(self, *_: object) -> None:
        """Nothing stays open."""

    def _opened(self) -> Any:
        if self._is_parquet:
            return pyarrow.parquet.ParquetFile(self.path)
        return pyarrow.csv.open_csv(self.path)

    def requests(self) -> Iterator[BatchRequest]:
        """All requests, from the first.

        Raises:
            InputError: the file failed.
        """
        seen: set[str] = set()
        number = 0
        try:
            with self._opened() as opened:
                batches = opened.iter_batches(_ROWS) if self._is_parquet else opened
                for batch in batches:
                    for row in batch.to_pylist():
                        number += 1
                        yield self._request(number, row, seen)
        except (OSError, pyarrow.ArrowException) as error:
            raise InputError(f"cannot read the input {self.path}: {error}") from error

    def _request(self, number: int, row: dict[str, Any], seen: set[str]) -> BatchRequest:
        custom_id = str(row.get("custom_id", number))
        if custom_id in seen:
            return BatchRequest(number, None, wrong=f"custom_id {custom_id!r:.100} is that of an earlier row")
        seen.add(custom_id)
        question, image = row[self._question], row.get(self._image) if self._image else None
        if not isinstance(question, str):
            return BatchRequest(number, custom_id, wrong=f"{self._question} must be text, got {question!r:.100}")
        content: list[dict[str, Any]] = [{"type": "text", "text": question}]
        if isinstance(image, Mapping):  # as libraries of datasets keep images
            image = image.get("bytes") or image.get("path")
        if isinstance(image, bytes):
            image = "data:application/octet-stream;base64," + base64.b64encode(image).decode()
        if isinstance(image, str):
            content.insert(0, {"type": "image_url", "image_url": {"url": image}})
        elif image is not None:
            return BatchRequest(number, custom_id, wrong=f"{self._image} must be bytes or a name, got {image!r:.100}")
        body = {"model": self._model, **self._fields, "messages": [{"role": "user", "content": content}]}
        return BatchRequest(number, custom_id, "/v1/chat/completions", json.dumps(body).encode())
