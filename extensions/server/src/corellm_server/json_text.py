"""Reads a request's JSON strictly: no NaN, no infinite numbers, no lone surrogates, bounded depth and counts.

So every string can be encoded, every number compared, and every value written as JSON again.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from corellm_server.errors import ApiError

VALUE_BYTES = 64
"""Memory that a value takes, beside its text: an empty list or object, in a list."""
_PLACE = re.compile(r"\(byte (\d+)\)$")


class JsonCounter:
    """Counts what JSON is made of while it comes, outside of its strings and before any of it is parsed."""

    def __init__(self) -> None:
        self.num_values = 0
        """Commas and opening brackets: one less than the values, or more than those."""
        self.num_keys = 0
        """Colons and opening brackets: keys of objects, and lists and objects."""
        self._in_string = False
        self._escape = b""
        """A backslash at the end of the last piece."""

    def add(self, piece: bytes) -> None:
        """Count the next piece."""
        text = self._escape + piece
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        self._escape = b"\\" if text.endswith(b"\\") else b""
        pieces = text.split(b'"')
        outside = b" ".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        num_opened = outside.count(b"[") + outside.count(b"{")
        self.num_values += num_opened + outside.count(b",")
        self.num_keys += num_opened + outside.count(b":")


def count_values(body: bytes) -> int:
    """The values of a body, or some more."""
    counter = JsonCounter()
    counter.add(body)
    return counter.num_values


def read_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """The object that a request's body is.

    Raises:
        ApiError: it is no JSON object, or is not strict.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also numbers of thousands of digits
        place = _PLACE.search(str(error))
        raise invalid_json(f"the body is not JSON{f' at byte {place[1]}' if place else ''}") from None
    if not isinstance(value, dict):
        raise invalid_json("the body must be an object, like {...}")
    level: list[Any] = [value]
    for _ in range(max_depth):
        below = (inner.values() if isinstance(inner, dict) else inner for inner in level)
        level = [value for values in below for value in values if isinstance(value, dict | list)]
        if not level:
            return value
    raise invalid_json(f"it is nested more than {max_depth} deep")


def invalid_json(message: str, **more: Any) -> ApiError:
    """The error for a body that is not as this page says."""
    return ApiError(400, f"invalid JSON: {message}", code="invalid_json", **more)
