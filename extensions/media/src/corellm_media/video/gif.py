"""Animated GIFs, composed frame by frame as browsers do. Needs no FFmpeg, whose composition differs from theirs.

Knows the blocks of the format; single images are decoded by Pillow. What a frame's disposal clears becomes
transparent, whatever the background colour; transparency becomes white; a frame shown for less than 20 ms gets 100.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
from PIL import Image
from PIL.GifImagePlugin import GifImageFile

from corellm.config import MultiModalConfig
from corellm.errors import MediaError
from corellm_media.video.bounds import PixelBudget, check_packets, check_size
from corellm_media.video.integrity import BROKEN

_IMAGE, _EXTENSION, _END = 0x2C, 0x21, 0x3B
_CONTROL = 0xF9
_CLEAR, _RESTORE = 2, 3  # what to do with a frame before the next
_SHORTEST, _USUAL = 2, 10  # hundredths of a second
_NO_CONTROL: tuple[int, int, int | None] = (0, 0, None)

_COST = 128
"""Video pixels that one GIF pixel counts as: to decode and paste it takes 20 ns in one thread, so the default of
`max_video_decoded_pixels` means ten seconds.
"""
_OPENING = 4096  # pixels that could be decoded in the time it takes to open an image


@dataclass(frozen=True, slots=True)
class _Image:
    """One image: where it lies on the canvas, and where in the file its palette and its data are."""

    left: int
    top: int
    width: int
    height: int
    interlaced: bool
    palette: slice
    data: slice
    disposal: int = 0
    """What to do with it before the next; with what follows, of the graphic control extension before it."""
    delay: int = 0
    transparent: int | None = None


class GifVideo:
    """The frames of one GIF, by number. Immutable; any thread may read it.

    Attributes:
        width, height: of every frame.
        times: when each frame is shown, seconds from the first.
        duration, fps: seconds in all, and frames per second on average.

    Args:
        data: the whole file.
        limits: `max_video_pixels` (of a frame) and `max_video_decoded_pixels` (of one reading) count.

    Raises:
        MediaTooLargeError: larger frames, or too many.
        MediaError: broken, truncated, or without images.
    """

    def __init__(self, data: bytes, limits: MultiModalConfig) -> None:
        self._data = data
        self._max_decoded_pixels = limits.max_video_decoded_pixels // _COST
        try:
            self.width, self.height = struct.unpack_from("<HH", data, 6)
            check_size(self.width, self.height, limits.max_video_pixels)
            self._images = _images(data)
        except (IndexError, struct.error) as error:  # a field beyond the end
            raise MediaError(BROKEN) from error
        if not self._images or not self.width or not self.height:
            raise MediaError("has no frames")
        for image in self._images:
            check_size(image.width, image.height, limits.max_video_pixels)
        delays = [image.delay for image in self._images]
        ends = list(accumulate(delay if delay >= _SHORTEST else _USUAL for delay in delays))
        self.times = tuple(end / 100 for end in [0, *ends[:-1]])
        self.duration = ends[-1] / 100
        self.fps = len(ends) / self.duration

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        """The frames `numbers` (ascending, each once), `[height, width, 3]` uint8 RGB, made on demand.

        Raises:
            MediaTooLargeError: too much to decode for them.
            MediaError: an image cannot be decoded.
        """
        wanted = set(numbers)
        images = self._images[: max(wanted, default=-1) + 1]
        pixels = sum(image.width * image.height + _OPENING for image in images) + len(wanted) * self.width * self.height
        PixelBudget(self._max_decoded_pixels).check(pixels)
        canvas = Image.new("RGB", (self.width, self.height), "white")  # where the image is transparent
        for number, image in enumerate(images):
            box = image.left, image.top, image.left + image.width, image.top + image.height
            disposal = image.disposal
            before = canvas.crop(box) if number in wanted and disposal == _RESTORE else None
            if number in wanted or disposal not in (_CLEAR, _RESTORE):  # else it is cleared before a wanted frame
                frame = self._decode(number)
                canvas.paste(frame, box, frame if frame.mode == "RGBA" else None)
                del frame
            if number in wanted:
                yield np.array(canvas)
            if disposal == _CLEAR:
                canvas.paste("white", box)
            elif before is not None:
                canvas.paste(before, box)

    def _decode(self, number: int) -> Image.Image:
        """Decode one image from a file made of it alone: RGBA, or RGB if nothing is transparent."""
        image = self._images[number]
        palette = self._data[image.palette]
        flags = 0x80 | (len(palette) // 3).bit_length() - 2 if palette else 0
        parts = [b"GIF89a", struct.pack("<HHBBB", image.width, image.height, flags, 0, 0), palette]
        if image.transparent is not None:
            parts.append(struct.pack("<BBBBHBB", _EXTENSION, _CONTROL, 4, 1, 0, image.transparent, 0))
        parts.append(struct.pack("<BHHHHB", _IMAGE, 0, 0, image.width, image.height, image.interlaced << 6))
        try:
            frame = GifImageFile(BytesIO(b"".join([*parts, self._data[image.data], bytes([_END])])))
            return frame.convert("RGB" if image.transparent is None else "RGBA")
        except Exception as error:  # Pillow raises many types for broken files
            raise MediaError(f"frame {number} (at {self.times[number]:.2f} s) cannot be decoded") from error


def _images(data: bytes) -> list[_Image]:
    """Return the images of all blocks up to the trailer.

    Raises:
        MediaError, MediaTooLargeError: see `GifVideo`.
        IndexError, struct.error: the file ends before.
    """
    images: list[_Image] = []
    common = slice(13, 13 + _palette_bytes(data[10]))
    at, control = common.stop, _NO_CONTROL
    while (kind := data[at]) != _END:
        start = at
        if kind == _IMAGE:
            left, top, width, height, flags = struct.unpack_from("<HHHHB", data, at + 1)
            own = slice(at + 10, at + 10 + _palette_bytes(flags))
            start, at = own.stop, own.stop + 1
        elif kind == _EXTENSION:
            if data[at + 1] == _CONTROL:
                control = _control(data, at)
            at += 2
        else:
            raise MediaError(BROKEN)
        while length := data[at]:
            at += length + 1
        at += 1
        if kind == _IMAGE and width and height:
            palette = own if own.stop > own.start else common
            images.append(_Image(left, top, width, height, bool(flags & 0x40), palette, slice(start, at), *control))
            control = _NO_CONTROL
            check_packets(len(images))
    return images


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _control(data: bytes, at: int) -> tuple[int, int, int | None]:
    """Return disposal, delay and transparent colour of a graphic control extension."""
    flags, delay, transparent = struct.unpack_from("<BHB", data, at + 3)
    return flags >> 2 & 7, delay, transparent if flags & 1 else None
