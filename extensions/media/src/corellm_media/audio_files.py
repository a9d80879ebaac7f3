"""Whether an audio file is whole, by the lengths that its container states.

libsndfile stops early without an error: at the cut of a truncated WAV, at a broken last page of an Ogg, after the first
of several joined files. Its log names some of this, but ends after 2,047 characters, which a comment fills. Knows
headers only: nothing is decoded, no library is needed.

FLAC needs none of this: its decoder checks the stated length and every frame.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import BinaryIO

from corellm.errors import MediaError

_MAX_PARTS = 500_000
"""Most chunks, pages or frames of one file: ten minutes of MP3 have 25 thousand frames."""

_UNKNOWN_WAV_SIZE = 0x7FFF0000
"""Programs that write WAV to a pipe do not know its size: they state 0xFFFFFFFF, or a little less than 2 GiB."""

_BITS_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

_MP3_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")
_MP3_INDEX = re.compile(_MP3_FRAME.pattern + rb".{10,34}(Xing|Info)", re.DOTALL)
_MP3_TAGS = re.compile(rb"TAG|APETAGEX|LYRICSBEGIN|ID3")
_MP3_FRAMES_LEFT = 2
"""Frames that may follow the last one that is decoded: those that only fill up, or are none."""


def check_wav(stream: BinaryIO, name: str) -> None:
    """Check that the whole data chunk is there.

    Raises:
        MediaError: the file ends before its data do.
    """
    end = stream.seek(0, os.SEEK_END)
    position = 12
    for _ in range(_MAX_PARTS):
        if position + 8 > end:
            return
        stream.seek(position)
        chunk, size = stream.read(4), int.from_bytes(stream.read(4), "little")
        position += 8
        if chunk == b"data":
            if position + size > end and size < _UNKNOWN_WAV_SIZE:
                raise MediaError(
                    f"{name}: truncated WAV: it announces {size} bytes of samples, {end - position} are there",
                    expected=size, got=end - position,
                )  # fmt: skip
            return
        position += size + size % 2
    raise _too_many_parts(name)


def check_ogg(stream: BinaryIO, name: str) -> None:
    """Check that all pages are whole and of one stream; the decoder skips broken ones.

    A stream that ends after a page without the end mark is accepted: some recorders never write it.

    Raises:
        MediaError: a page is broken, the file ends inside one, or a second stream follows the first.
    """
    position, begun = 0, False
    for _ in range(_MAX_PARTS):
        stream.seek(position)
        header = stream.read(27)
        if not header or not b"OggS".startswith(header[:4]):
            return  # the end, or other data after the audio
        lacing = stream.read(header[26]) if len(header) == 27 else b""
        body = stream.read(sum(lacing))
        position += 27 + len(lacing) + len(body)
        if len(header) < 27 or len(lacing) < header[26] or len(body) < sum(lacing):
            raise MediaError(f"{name}: truncated Ogg: it ends inside a page")
        checksum = int.from_bytes(header[22:26], "little")
        if checksum != _ogg_checksum(header[:22] + bytes(4) + header[26:] + lacing + body):
            raise MediaError(f"{name}: broken Ogg: a page whose checksum is wrong")
        first_of_a_stream = bool(header[5] & 2)
        if first_of_a_stream and begun:
            raise MediaError(f"{name}: several Ogg files joined end to end; give each on its own")
        begun = not first_of_a_stream
    raise _too_many_parts(name)


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 with zlib's polynomial, but highest bit first and without its inversions (RFC 3533, section 6)."""
    reflected = zlib.crc32(page.translate(_BITS_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_BITS_REVERSED), "big")


def states_mp3_length(data: bytes) -> bool:
    """Whether an MP3 has an index (Xing, Info), from which the decoder knows its length; else it guesses."""
    return _MP3_INDEX.search(data) is not None


def check_mp3_end(rest: bytes, decoded: float, name: str) -> None:
    """Check that no more MP3 frames follow where the decoder stopped.

    Args:
        rest: what it did not read: tags, or nothing.
        decoded: seconds.
        name: of the file, for messages.

    Raises:
        MediaError: there are more.
    """
    tags = _MP3_TAGS.search(rest)
    if len(_MP3_FRAME.findall(rest, 0, tags.start() if tags else len(rest))) > _MP3_FRAMES_LEFT:
        raise MediaError(
            f"{name}: only {decoded:.2f} seconds can be decoded, but more follows: several MP3 files joined end to "
            "end? give each on its own, or encode them together",
            got=decoded,
        )


def _too_many_parts(name: str) -> MediaError:
    return MediaError(f"{name}: cut into more than {_MAX_PARTS} parts: not audio that any program writes")
