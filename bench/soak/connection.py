"""One request on a connection of its own, by clients of all manners: patient, slow, and such that leave.

Writes and reads bytes itself: clients that misbehave are what it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

from bench.soak.tally import Outcome


@dataclass(frozen=True)
class Manner:
    """How a client behaves."""

    leaves_after: float | None = None
    """Seconds after sending; None to read the response."""
    reads: int | None = None
    """Bytes after which it leaves; None for all."""
    pause: float = 0.0
    """Seconds between two reads of few bytes."""
    sends: float = 1.0
    """Share of the body that it sends."""


PATIENT = Manner()


async def send(
    address: tuple[str, int],
    path: str,
    body: bytes,
    manner: Manner = PATIENT,
    opening: contextlib.AbstractAsyncContextManager[object] | None = None,
) -> tuple[Outcome, str]:
    """Send a request; returns what became of it, and the response's body.

    Args:
        address, path, body: of the request.
        manner: of the client.
        opening: held from the connection to the request's head; a semaphore keeps a crowd from connecting faster than
            it sends.
    """
    size = 256 if manner.pause else 1 << 16
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    async with opening or contextlib.nullcontext():
        reader, writer = await asyncio.open_connection(*address, limit=size)
        writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode())
    try:
        writer.write(body[: int(len(body) * manner.sends)])
        await writer.drain()
        if manner.leaves_after is not None:
            await asyncio.sleep(manner.leaves_after)
            return "aborted", ""
        received = b""
        while data := await reader.read(size):
            received += data
            if manner.reads is not None and len(received) >= manner.reads:
                return "aborted", ""
            await asyncio.sleep(manner.pause)
        return judged(received)
    except ConnectionError as error:
        return "failed", type(error).__name__
    finally:
        writer.transport.abort()


def judged(response: bytes) -> tuple[Outcome, str]:
    """What a whole response says."""
    head, _, body = response.partition(b"\r\n\r\n")
    if not head:
        return "failed", "no response"
    status, text = int(head.split()[1]), body.decode(errors="replace")
    if 400 <= status < 500:
        return "refused", text
    is_whole = "data: [DONE]" in text if b"text/event-stream" in head else is_json(text)
    return ("completed", text) if status == 200 and is_whole else ("failed", f"{status} {text[-300:]}")


def is_json(text: str) -> bool:
    """Whether it is an object of JSON."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict)
