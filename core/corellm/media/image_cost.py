"""Limits on the work that an image file causes beyond its pixels: JPEG scans, TIFF parts, BMP runs. Decodes nothing.

A decoder passes over the whole image once per scan of a JPEG, and an empty scan takes ten bytes: four thousand of them
take ten seconds. Encoders write 10, a few up to 20. A TIFF may have a tile per pixel. Pillow decodes compressed BMPs in
Python, run by run: a run may have no pixels, or skip 255 rows.
"""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

from corellm.errors import MediaError, MediaTooLargeError

MAX_SCANS = 100
"""Most scans of a small JPEG; `_SCANS_AT_LIMIT` at the limit of pixels, and the same work in between."""
_SCANS_AT_LIMIT = 20
MAX_PARTS = 1 << 16
"""Most strips or tiles of a TIFF: 67 million pixels in tiles of 32 by 32."""
MAX_BMP_BYTES, MAX_BMP_WIDTH = 1 << 22, 1 << 16
"""Of a compressed BMP."""

_SCAN, _END = 0xDA, 0xD9
_SCAN_MARKER = b"\xff\xda"
_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")  # markers with a length, and the end; restarts have none
MAX_SEGMENTS = 1 << 16
"""Most segments of a JPEG with many scans: encoders write a few hundred."""

_STRIPS, _TILES = (273, 279), (324, 325)  # TIFF's tags: where each part begins, and its bytes
_COMPRESSION, _JPEG = 259, (6, 7)
_INTEGER_BYTES = {3: 2, 4: 4, 16: 8}  # TIFF's types: SHORT, LONG, LONG8


def check_jpeg(stream: BinaryIO, image: Image.Image, max_pixels: int) -> None:
    """Raise `MediaTooLargeError` for a JPEG of too many scans for its size; keeps the stream's position."""
    at = stream.tell()
    stream.seek(0)
    _check_scans(_count_scans(stream.read()), image.width * image.height, max_pixels)
    stream.seek(at)


def check_bmp(stream: BinaryIO, image: ImageFile) -> None:
    """Raise `MediaTooLargeError` for a compressed BMP that is too large or too wide; keeps the stream's position."""
    if all(tile.codec_name != "bmp_rle" for tile in image.tile):
        return
    at = stream.tell()
    size = stream.seek(0, os.SEEK_END)
    stream.seek(at)
    if size > MAX_BMP_BYTES or image.width > MAX_BMP_WIDTH:
        raise MediaTooLargeError(
            f"a compressed BMP of {size} bytes, {image.width} pixels wide; at most {MAX_BMP_BYTES} bytes and "
            f"{MAX_BMP_WIDTH} pixels are allowed; save it as PNG",
            expected=(MAX_BMP_BYTES, MAX_BMP_WIDTH), got=(size, image.width),
        )  # fmt: skip


def check_tiff(stream: BinaryIO, image: TiffImageFile, max_pixels: int) -> None:
    """Check the scans of a TIFF whose strips or tiles are JPEGs; keeps the stream's position.

    Raises:
        MediaTooLargeError: too many scans for its size.
        MediaError: parts overlap.
    """
    tags = image.tag_v2
    if tags.get(_COMPRESSION) not in _JPEG:
        return
    parts = [(start, length) for where, lengths in (_STRIPS, _TILES) if where in tags
             for start, length in zip(tags[where], tags.get(lengths, ()), strict=False)]  # fmt: skip
    at = stream.tell()
    stream.seek(0)
    data = stream.read()
    stream.seek(at)
    if sum(length for _, length in parts) > len(data):  # else one part's scans would count for many
        raise MediaError("a TIFF whose parts overlap")
    scans = sum(_count_scans(data[start : start + length]) for start, length in parts)
    _check_scans(-(-scans // max(1, len(parts))), image.width * image.height, max_pixels)


def check_tiff_parts(stream: BinaryIO) -> None:
    """Raise `MediaTooLargeError` for a TIFF of too many strips or tiles: Pillow makes an object of each."""
    header = stream.read(8)
    if header[2:3] == b"\x2b" or header[3:4] == b"\x2b":  # BigTIFF
        header += stream.read(8)
    directory = ImageFileDirectory_v2(header)
    stream.seek(directory.next)
    directory.load(stream)
    for where, _ in (_STRIPS, _TILES):
        raw = directory._tagdata.get(where, b"")  # undecoded: as integers they take nine times the memory
        count = len(raw) // _INTEGER_BYTES.get(directory.tagtype.get(where, 0), 1)
        if count > MAX_PARTS:
            raise MediaTooLargeError(
                f"{count} strips or tiles, more than the {MAX_PARTS} allowed", expected=MAX_PARTS, got=count
            )


def _check_scans(scans: int, pixels: int, max_pixels: int) -> None:
    allowed = min(MAX_SCANS, _SCANS_AT_LIMIT * max_pixels // max(1, pixels))
    if scans > allowed:
        raise MediaTooLargeError(
            f"a JPEG of {scans} scans, more than the {allowed} allowed for {pixels} pixels; save it again",
            expected=allowed, got=scans,
        )  # fmt: skip


def _count_scans(data: bytes) -> int:
    """The scans of a JPEG up to its end; where it is broken, at least as many as a decoder finds.

    What follows a marker is skipped by its length; from there on, as inside a scan, markers are what counts: a byte
    0xFF of compressed data is followed by a zero.
    """
    if data.count(_SCAN_MARKER) <= _SCANS_AT_LIMIT:  # all there can be, hidden in metadata or not
        return data.count(_SCAN_MARKER)
    scans = at = 0
    for _ in range(MAX_SEGMENTS):
        found = _SEGMENT.search(data, at)
        if found is None or found[1][0] == _END:
            return scans
        scans += found[1][0] == _SCAN
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    raise MediaTooLargeError(f"a JPEG of more than {MAX_SEGMENTS} segments; save it again", expected=MAX_SEGMENTS)
