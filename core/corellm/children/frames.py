"""Messages on a stream: eight bytes of length, then JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct(">Q")


def encode(message: Any) -> bytes:
    """Return the bytes of a message's frame.

    Raises:
        TypeError, ValueError, RecursionError: the message is not JSON.
    """
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def read(receive: Callable[[int], bytes], max_bytes: int) -> Any:
    """Return the next message.

    Args:
        receive: returns at most the given number of bytes, none at the end of the stream.
        max_bytes: the longest message to take.

    Raises:
        EOFError: the stream ended.
        ValueError: the message is longer than `max_bytes`, or not JSON.
    """
    (length,) = _LENGTH.unpack(_exactly(receive, _LENGTH.size))
    if length > max_bytes:
        raise ValueError(f"a message of {length} bytes, more than {max_bytes}")
    return json.loads(_exactly(receive, length))


def _exactly(receive: Callable[[int], bytes], count: int) -> bytes:
    parts = []
    while count:
        part = receive(min(count, 1 << 20))
        if not part:
            raise EOFError("the stream ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
