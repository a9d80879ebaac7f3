"""Inputs that have no requests of their own: what makes them of files. Frozen, documented and validated once.

Imports nothing but errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from corellm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Requests of a directory of images, or with `--ray` of a table."""

    question: str | None = None
    """Text of each request of a directory of images; None for the column `--question-column` of its `metadata.jsonl` or
    `metadata.csv`, beside the column `file_name`."""
    question_column: str = "question"
    """Column of a table with the text of each request."""
    image_column: str | None = "image"
    """Column of a table with the image of each request: bytes, or the name of a file below
    `--allowed-local-media-path`. There need be none."""
    request_fields: str = "{}"
    """Further fields of the requests that images or rows become, as JSON: {"temperature": 0}."""

    def __post_init__(self) -> None:
        if self.question == "":
            raise ConfigError("question is empty; write the text of each request")
        _ = self.fields

    @property
    def fields(self) -> dict[str, Any]:
        """Further fields of requests.

        Raises:
            ConfigError: they are no object.
        """
        try:
            fields = json.loads(self.request_fields)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise ConfigError(
                f'request_fields must be an object like {{"temperature": 0}}, got {self.request_fields!r:.100}'
            )
        if fields.get("stream"):
            raise ConfigError("request_fields: stream is not for files; leave it out")
        return fields
