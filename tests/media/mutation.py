"""Damaged media files: bytes changed, cut, put in, repeated, or taken from another file. Knows no format."""

from __future__ import annotations

import random
from collections.abc import Sequence

_EXTREMES = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0", b"\0\0\0\x80", b"\0\1")
"""Sizes and counts that no file has."""


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """The file with one to four damages, most of them near its start, where headers are."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(rng.choice((32, 256, len(damaged))), len(damaged)) or 1)
        match rng.randrange(7):
            case 0:
                damaged[at : at + 1] = rng.randbytes(1)
            case 1:
                damaged[at : at + 1] = bytes([damaged[at] ^ 1 << rng.randrange(8)] if damaged else b"")
            case 2:
                extreme = rng.choice(_EXTREMES)
                damaged[at : at + len(extreme)] = extreme
            case 3:
                del damaged[rng.choice((at, rng.randrange(len(damaged) or 1))) :]
            case 4:
                del damaged[at : at + rng.choice((1, 4, 200))]
            case 5:
                start = rng.randrange(len(damaged) or 1)
                damaged[at:at] = damaged[start : start + rng.choice((1, 16, 500))] * rng.choice((1, 1, 100))
            case _:
                damaged[at:] = rng.choice(others)[at:]
    return bytes(damaged)
