"""Reads a request's JSON strictly: no NaN, no infinite numbers, no lone surrogates, bounded depth.

So every string can be encoded, every number compared, and every value written as JSON again.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from corellm.server.errors import ApiError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


VALUE_BYTES = 64
"""Memory that a value takes, beside its text: an empty list or object, in a list."""


def count_values(body: bytes) -> int:
    """The commas and opening brackets of JSON or a piece of it: one less than its values, or more than those."""
    return sum(map(body.count, (b",", b"[", b"{")))


def read_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """The object that a request's body is.

    Raises:
        ApiError: it is no JSON object, or is not strict.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        at = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise _invalid(f"the body is not JSON{at}") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be an object, like {...}")
    _check(value, max_depth, check_strings=_SURROGATE.search(body) is not None)
    return value


def _check(value: Any, max_depth: int, *, check_strings: bool) -> None:
    """Check numbers, strings and depth, without recursion."""
    level = [value]
    for _ in range(max_depth):
        below: list[Any] = []
        for inner in level:
            if isinstance(inner, dict):
                below += inner.values()
                if check_strings:
                    below += inner.keys()
            elif isinstance(inner, list):
                below += inner
            elif isinstance(inner, float) and not math.isfinite(inner):
                raise _invalid("it has a number that is too large")
            elif check_strings and isinstance(inner, str) and not _is_whole(inner):
                raise _invalid("a string has half of a character (an escaped lone surrogate)")
        level = below
        if not level:
            return
    raise _invalid(f"it is nested more than {max_depth} deep")


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _invalid(message: str) -> ApiError:
    return ApiError(400, f"invalid JSON: {message}", code="invalid_json")
