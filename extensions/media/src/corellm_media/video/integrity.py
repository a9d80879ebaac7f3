"""Which container an encoded file is, and whether it ends where its outermost parts say.

FFmpeg reads a truncated file without an error. Knows the outermost structure of MP4/MOV, Matroska/WebM, AVI and
MPEG-TS; everything inside is FFmpeg's (`container`).
"""

from __future__ import annotations

import struct

from corellm.errors import MediaError
from corellm_media.video.bounds import check_packets

BROKEN = "is broken or truncated"

_MP4_START = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})

_TS_SYNC, _TS_PACKET, _TS_STAMPED = 0x47, 188, 192  # bytes of a packet, plain and with a timestamp (AVCHD)
_TS_CHECKED = 4  # packets whose first byte is checked

_EBML, _SEGMENT, _CLUSTER = b"\x1aE\xdf\xa3", b"\x18S\x80g", b"\x1fC\xb6u"


def identify(data: bytes) -> str | None:
    """Container of `data` by its signature: "mov", "matroska", "avi", "mpegts" (FFmpeg's names), "gif", or None."""
    if data[4:8] in _MP4_START:
        return "mov"
    if data.startswith(_EBML):
        return "matroska"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    if _ts_packet_bytes(data):
        return "mpegts"
    return "gif" if data.startswith((b"GIF87a", b"GIF89a")) else None


def check_whole(data: bytes, container: str) -> None:
    """Check that no part of a file ends beyond its end.

    Args:
        data: the whole file.
        container: "mov", "matroska", "avi" or "mpegts".

    Raises:
        MediaTooLargeError: it has too many parts.
        MediaError: it is broken or truncated.
    """
    check = {"mov": _check_mp4, "matroska": _check_matroska, "avi": _check_avi, "mpegts": _check_ts}[container]
    try:
        check(data)
    except (IndexError, struct.error) as error:  # a field beyond the end
        raise MediaError(BROKEN) from error


def _check_mp4(data: bytes) -> None:
    """Check the boxes: size (4 bytes, 0 for "to the end", 1 for "in 8 more bytes"), kind (4 bytes) and content."""
    at, parts, kinds = 0, 0, set()
    while len(data) - at >= 8:
        size, kind = struct.unpack_from(">I4s", data, at)
        (size,) = struct.unpack_from(">Q", data, at + 8) if size == 1 else (size,)
        end = at + size if size else len(data)
        if end < at + 8 or end > len(data):
            raise MediaError(f"{BROKEN}: its {kind.decode('latin-1')!r} box ends beyond the end")
        kinds.add(kind)
        at, parts = end, parts + 1
        check_packets(parts)
    if b"moov" not in kinds:  # FFmpeg would read tiles of a still image
        raise MediaError(f"{BROKEN}: it has no index (no 'moov' box)")


def _check_matroska(data: bytes) -> None:
    """Check the lengths of all elements; inside clusters only those of unknown length (live recordings)."""
    at, limit, parts, has_segment = 0, len(data), 0, False
    while at < limit:
        parts += 1
        check_packets(parts)
        kind_length = 9 - data[at].bit_length()
        kind = data[at : at + kind_length]
        at += kind_length
        length = 9 - data[at].bit_length()
        size = int.from_bytes(data[at : at + length], "big") - (1 << 7 * length)
        at += length
        unknown = size == (1 << 7 * length) - 1
        is_open = kind == _SEGMENT or (unknown and kind == _CLUSTER)
        if kind_length > 4 or length > 8 or at > limit or (unknown and not is_open):
            raise MediaError(BROKEN)
        if not unknown and at + size > limit:
            raise MediaError(BROKEN)
        if kind == _SEGMENT and not unknown:
            limit = at + size
        has_segment = has_segment or kind == _SEGMENT
        at += 0 if is_open else size
    if not has_segment:
        raise MediaError(BROKEN)


def _check_avi(data: bytes) -> None:
    """Check the RIFF parts; long recordings have several of up to a gigabyte."""
    at = 0
    while data[at : at + 4] == b"RIFF":
        end = at + 8 + int(struct.unpack_from("<I", data, at + 4)[0])
        if end > len(data) or end == at + 8:
            raise MediaError(BROKEN)
        at = end + end % 2


def _check_ts(data: bytes) -> None:
    if len(data) % _ts_packet_bytes(data):
        raise MediaError(BROKEN)


def _ts_packet_bytes(data: bytes) -> int:
    """Bytes per packet of an MPEG-TS; 0 if it is none."""
    for size in (_TS_PACKET, _TS_STAMPED):
        begins = data[size - _TS_PACKET : _TS_CHECKED * size : size]
        if len(begins) >= 2 and set(begins) == {_TS_SYNC}:
            return size
    return 0
