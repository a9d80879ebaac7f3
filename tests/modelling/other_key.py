"""An extension that reads a prompt's key `other` and makes nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from corellm.hookspecs import hookimpl
from corellm.plugin.extensions import load_extensions
from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request_part import RequestPart


@dataclass(frozen=True)
class Other(PartAround):
    """What it makes of a request."""


class OtherKey:
    """The key, and the extension."""

    name = "other"

    def read(self, value: Any) -> bool:
        """Return whether it is anything."""
        return bool(value)

    def variant(self, read: bool) -> str:
        """Return nothing: encoders are the model's own."""
        return ""

    def around(self, part: RequestPart, read: bool) -> RequestPart:
        """Return the request's part, held by another."""
        return Other(part)

    @hookimpl
    def offer_prompt_key(self) -> OtherKey:
        """Return the key."""
        return self

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block, models are loaded with it."""
        manager = load_extensions()
        manager.register(self, name="the extension 'other' of tests")
        try:
            yield
        finally:
            manager.unregister(self)
