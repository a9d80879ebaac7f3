"""Whether an encoded video is whole, and how much its tables announce, before FFmpeg builds anything from them.

Knows the outer structure of MP4/MOV and Matroska/WebM; of frames and codecs it knows nothing (`container`).
FFmpeg reads what there is of a truncated file without a word, and makes tables as long as a header says: twelve bytes
announce a billion frames. Of an MP4, tracks other than video are hidden from it: nobody needs what is said there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from corellm.errors import MediaError, MediaTooLargeError

MAX_PACKETS = 1_000_000
"""Frames of a file, shown or not: four and a half hours at 60 per second."""

BROKEN = "is broken or truncated"

_MAX_PARTS = 2_000_000  # walked over in a second or two

_MP4_START = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
_MP4_NESTS = frozenset({b"trak", b"edts", b"mdia", b"minf", b"stbl", b"traf"})
_MP4_UNWANTED = frozenset({b"udta", b"meta"})  # tags, cover pictures, tiled still pictures

_EBML, _SEGMENT, _CLUSTER = b"\x1aE\xdf\xa3", b"\x18S\x80g", b"\x1fC\xb6u"


def identify(data: bytes) -> str | None:
    """What `data` is by its signature: "mov" and "matroska" (FFmpeg's names), "gif", or None for anything else."""
    if data[4:8] in _MP4_START:
        return "mov"
    if data.startswith(_EBML):
        return "matroska"
    return "gif" if data.startswith((b"GIF87a", b"GIF89a")) else None


def checked(data: bytes, container: str) -> bytes:
    """What FFmpeg may read of a file.

    Args:
        data: the whole file.
        container: "mov" or "matroska".

    Returns:
        `data`, or for an MP4 a copy in which boxes that are not about video are marked as free space.

    Raises:
        MediaTooLargeError: it announces more frames than `MAX_PACKETS`.
        MediaError: it is broken or truncated.
    """
    try:
        if container == "mov":
            return _Mp4(data).video_only()
        _check_matroska(data)
    except (IndexError, struct.error) as error:  # a field beyond the end
        raise MediaError(BROKEN) from error
    return data


def too_many_packets(got: int | None = None) -> MediaTooLargeError:
    """The error for a file of more than `MAX_PACKETS` frames."""
    return MediaTooLargeError(f"has more than {MAX_PACKETS} frames", expected=MAX_PACKETS, got=got)


def count_part(part: int) -> int:
    """`part + 1`, as long as there are not too many boxes, elements or blocks to walk over."""
    if part > _MAX_PARTS:
        raise MediaTooLargeError(f"has more than {_MAX_PARTS} parts", expected=_MAX_PARTS)
    return part + 1


# --- MP4 / MOV --------------------------------------------------------------------------------------------------------


class _Mp4:
    """A walk over the boxes of a file.

    A box is its size (4 bytes, 0 for "to the end", 1 for "in 8 more bytes"), its kind (4 bytes) and its content.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._parts = 0
        self._samples = 0
        self._unwanted: list[int] = []  # where the boxes to hide have their kind

    def video_only(self) -> bytes:
        """The file with every box hidden that is not needed to show its video.

        Raises:
            MediaError, MediaTooLargeError: see `checked`.
        """
        tracks: set[bytes] = set()
        has_index = False
        for kind, start, body, end in self._boxes(0, len(self._data)):
            if kind == b"moov":
                has_index = True
                tracks |= self._read_moov(body, end)
            elif kind == b"moof":
                self._read_moof(body, end, tracks)
            elif kind in _MP4_UNWANTED:
                self._unwanted.append(start + 4)
        if not has_index:
            raise MediaError(f"{BROKEN}: it has no index (no 'moov' box)")
        pieces: list[bytes | memoryview] = []
        last = 0
        for place in sorted(self._unwanted):
            pieces += [memoryview(self._data)[last:place], b"free"]
            last = place + 4
        return b"".join([*pieces, memoryview(self._data)[last:]]) if pieces else self._data

    def _boxes(self, start: int, limit: int) -> Iterator[tuple[bytes, int, int, int]]:
        """`(kind, start, start of the content, end)` of each box in a stretch of the file."""
        while limit - start >= 8:
            self._parts = count_part(self._parts)
            size, kind = struct.unpack_from(">I4s", self._data, start)
            body = start + 8
            if size == 1:
                (size,) = struct.unpack_from(">Q", self._data, body)
                body += 8
            end = start + size if size else limit
            if end < body or end > limit:
                raise MediaError(f"{BROKEN}: its {kind.decode('latin-1')!r} box ends beyond the end")
            yield kind, start, body, end
            start = end

    def _leaves(self, start: int, limit: int) -> Iterator[tuple[bytes, int, int]]:
        """`(kind, start of the content, end)` of the boxes in a track that hold no boxes."""
        stretches = [(start, limit)]
        while stretches:
            for kind, _, body, end in self._boxes(*stretches.pop()):
                if kind in _MP4_NESTS:
                    stretches.append((body, end))
                else:
                    yield kind, body, end

    def _read_moov(self, start: int, limit: int) -> set[bytes]:
        """Check the video tracks, hide everything else; gives their ids."""
        tracks = set()
        for kind, box, body, end in self._boxes(start, limit):
            if kind == b"cmov":
                raise MediaError("has a compressed index, which is not read; write it anew: ffmpeg -i IN -c copy OUT")
            if kind in _MP4_UNWANTED:
                self._unwanted.append(box + 4)
            elif kind == b"trak":
                leaves = list(self._leaves(body, end))
                if any(leaf == b"hdlr" and self._data[at + 8 : at + 12] == b"vide" for leaf, at, _ in leaves):
                    tracks.add(self._check_track(leaves))
                else:
                    self._unwanted.append(box + 4)
        return tracks

    def _check_track(self, leaves: list[tuple[bytes, int, int]]) -> bytes:
        samples = edits = 0
        track = b""
        for kind, at, end in leaves:
            if kind == b"tkhd":
                place = at + (20 if self._data[at] == 1 else 12)  # version 1 has 64-bit times before it
                track = self._data[place : place + 4]
            elif kind in (b"stsz", b"stz2"):
                samples += self._number(at + 8)
            elif kind in (b"stts", b"ctts"):  # run lengths, which FFmpeg writes out
                runs = np.frombuffer(self._data, ">u4", max(0, end - at - 8) // 8 * 2, at + 8)[::2]
                self._add(0, int(runs[: self._number(at + 4)].sum(dtype=np.int64)))
            elif kind == b"elst":
                edits += self._number(at + 4)
        self._add(samples * max(1, edits), 0)  # each edit may show all of the track
        return track

    def _read_moof(self, start: int, limit: int, tracks: set[bytes]) -> None:
        """Count a fragment's frames; hide its parts of tracks that are hidden."""
        for kind, box, body, end in self._boxes(start, limit):
            if kind != b"traf":
                continue
            leaves = list(self._leaves(body, end))
            if any(leaf == b"tfhd" and self._data[at + 4 : at + 8] in tracks for leaf, at, _ in leaves):
                self._add(sum(self._number(at + 4) for leaf, at, _ in leaves if leaf == b"trun"), 0)
            else:
                self._unwanted.append(box + 4)

    def _number(self, at: int) -> int:
        return int(struct.unpack_from(">I", self._data, at)[0])

    def _add(self, samples: int, alone: int) -> None:
        self._samples += samples
        if max(self._samples, alone) > MAX_PACKETS:
            raise too_many_packets(max(self._samples, alone))


# --- Matroska / WebM --------------------------------------------------------------------------------------------------


def _check_matroska(data: bytes) -> None:
    """Walk over the elements; into clusters only where these do not say how long they are (live recordings)."""
    at, limit, parts = 0, len(data), 0
    has_segment = False
    while at < limit:
        parts = count_part(parts)
        kind_length = 9 - data[at].bit_length()
        kind = data[at : at + kind_length]
        at += kind_length
        length = 9 - data[at].bit_length()
        if kind_length > 4 or length > 8:
            raise MediaError(BROKEN)
        size = int.from_bytes(data[at : at + length], "big") - (1 << 7 * length)
        at += length
        unknown = size == (1 << 7 * length) - 1
        if at > limit or (not unknown and at + size > limit):
            raise MediaError(BROKEN)
        if kind == _SEGMENT:
            has_segment = True
            limit = limit if unknown else at + size
        elif not unknown:
            at += size
        elif kind != _CLUSTER:
            raise MediaError(BROKEN)
    if not has_segment:
        raise MediaError(BROKEN)
