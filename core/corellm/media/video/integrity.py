"""Whether an encoded video is whole, and how much its tables announce, before FFmpeg builds anything from them.

Knows the outer structure of MP4/MOV, Matroska/WebM, AVI and MPEG-TS; nothing of frames and codecs (`container`).
FFmpeg reads truncated files without an error, and builds tables as long as a header says in this process, so they are
counted first. Of an MP4, everything but the tracks that are read is hidden from FFmpeg.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO

import numpy as np

from corellm.errors import MediaError
from corellm.media.video.bounds import check_packets, check_parts

BROKEN = "is broken or truncated"

_MP4_START = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
_MP4_NESTS = frozenset({b"trak", b"edts", b"mdia", b"minf", b"stbl", b"traf"})
_MP4_UNWANTED = frozenset({b"udta", b"meta"})  # tags, cover images, tiled still images

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


def boxes_to_hide(data: bytes, container: str, wanted: bytes = b"vide") -> Sequence[int]:
    """Check a file, and return the boxes that FFmpeg must not read.

    Args:
        data: the whole file.
        container: "mov", "matroska", "avi" or "mpegts".
        wanted: the handler type of the MP4 tracks that are read: b"vide" or b"soun".

    Returns:
        Positions of the kinds of an MP4's boxes to hide, ascending: for `HidingReader`.

    Raises:
        MediaTooLargeError: it announces more frames or parts than `bounds` allows.
        MediaError: it is broken or truncated.
    """
    try:
        if container == "mov":
            return _Mp4(data, wanted).boxes_to_hide()
        if container == "avi":
            _check_avi(data)
        elif container == "mpegts":
            if len(data) % _ts_packet_bytes(data):
                raise MediaError(BROKEN)
        else:
            _check_matroska(data)
    except (IndexError, struct.error) as error:  # a field beyond the end
        raise MediaError(BROKEN) from error
    return ()


class HidingReader(BytesIO):
    """A file in memory, shared and not copied, some of whose boxes are shown as free space.

    Args:
        data: the whole file.
        kinds: positions of the kinds of the boxes to hide, ascending.
    """

    def __init__(self, data: bytes, kinds: Sequence[int]) -> None:
        super().__init__(data)
        self._kinds = kinds

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes, hidden boxes as free space."""
        start = self.tell()
        data = super().read(size)
        first, stop = bisect_right(self._kinds, start - 4), bisect_right(self._kinds, start + len(data) - 1)
        if first == stop:
            return data
        shown = bytearray(data)
        for kind in self._kinds[first:stop]:
            for place, letter in enumerate(b"free", kind - start):
                if 0 <= place < len(shown):  # a kind may cross the border of two reads
                    shown[place] = letter
        return bytes(shown)


# --- MP4 / MOV --------------------------------------------------------------------------------------------------------


class _Mp4:
    """A walk over the boxes of a file.

    A box is its size (4 bytes, 0 for "to the end", 1 for "in 8 more bytes"), its kind (4 bytes) and its content.
    """

    def __init__(self, data: bytes, wanted: bytes) -> None:
        self._data = data
        self._wanted = wanted
        self._parts = 0
        self._samples = 0
        self._unwanted: list[int] = []  # positions of the kinds of boxes to hide

    def boxes_to_hide(self) -> list[int]:
        """Positions of the kinds of all boxes that the wanted tracks do not need, ascending.

        Raises:
            MediaError, MediaTooLargeError: see `boxes_to_hide`.
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
        return sorted(self._unwanted)

    def _boxes(self, start: int, limit: int) -> Iterator[tuple[bytes, int, int, int]]:
        """`(kind, start, start of the content, end)` of each box in a stretch of the file."""
        while limit - start >= 8:
            self._parts += 1
            check_parts(self._parts)
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
        """Check the wanted tracks, hide everything else; return their ids."""
        tracks = set()
        for kind, box, body, end in self._boxes(start, limit):
            if kind == b"cmov":
                raise MediaError("has a compressed index, which is not read; write it again: ffmpeg -i IN -c copy OUT")
            if kind in _MP4_UNWANTED:
                self._unwanted.append(box + 4)
            elif kind == b"trak":
                leaves = list(self._leaves(body, end))
                if any(leaf == b"hdlr" and self._data[at + 8 : at + 12] == self._wanted for leaf, at, _ in leaves):
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
            elif kind in (b"stts", b"ctts"):  # run lengths, which FFmpeg expands
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
        check_packets(max(self._samples, alone))


# --- Matroska / WebM --------------------------------------------------------------------------------------------------


def _check_matroska(data: bytes) -> None:
    """Check the lengths of all elements; inside clusters only those of unknown length (live recordings)."""
    at, limit, parts = 0, len(data), 0
    has_segment = False
    while at < limit:
        parts += 1
        check_parts(parts)
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


# --- AVI, MPEG-TS -----------------------------------------------------------------------------------------------------


def _check_avi(data: bytes) -> None:
    """Check the RIFF parts; long recordings have several of up to a gigabyte."""
    at = 0
    while data[at : at + 4] == b"RIFF":
        end = at + 8 + int(struct.unpack_from("<I", data, at + 4)[0])
        if end > len(data) or end == at + 8:
            raise MediaError(BROKEN)
        at = end + end % 2


def _ts_packet_bytes(data: bytes) -> int:
    """Bytes per packet of an MPEG-TS; 0 if it is none."""
    for size in (_TS_PACKET, _TS_STAMPED):
        begins = data[size - _TS_PACKET : _TS_CHECKED * size : size]
        if len(begins) >= 2 and set(begins) == {_TS_SYNC}:
            return size
    return 0
