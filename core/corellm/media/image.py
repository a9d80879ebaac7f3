"""An image in any accepted form to an upright 8-bit RGB `PIL.Image` without metadata.

Knows file formats, pixel modes and array layouts; it knows neither requests nor models. Only the formats named here are
read, the size in the header is checked before anything is decoded, and an image that cannot be read whole is an error,
never partly black. The model gets what a viewer would show:

- EXIF orientation is applied; an animation gives its first frame (an open `PIL.Image` its current one);
- transparency becomes white, and values of more than 8 bits are scaled to 8 (`pixels`).

Beside the file's own bytes, reading one takes at most four times its pixels in memory, three bytes a pixel (four of a
JPEG in CMYK); an AVIF five times, and its decoder may find a larger image than the header says: it is an option.

Pillow's plugins are called directly: the limit of `Image.open` is global to the process.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
    features,
)

from corellm.config import MEDIA_FORMATS
from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.files import check_format, name_of, read_file
from corellm.media.pixels import array_to_rgb, channels_last, to_rgb
from corellm.media.type_checks import is_array, is_tensor

if TYPE_CHECKING:
    from corellm.media.pool import MediaPool


class _WebP(WebPImagePlugin.WebPImageFile):
    """A still WebP. Its decoder, two canvases of 4 bytes a pixel, is freed as soon as the frame is read."""

    def load_prepare(self) -> None:
        self._decoder: Any = None
        super().load_prepare()


def _open_avif(stream: IO[bytes]) -> ImageFile.ImageFile:
    if not features.check("avif"):
        raise MediaError("AVIF needs Pillow 11.3 or newer, with libavif; convert the image to PNG or JPEG")
    from PIL import AvifImagePlugin

    return AvifImagePlugin.AvifImageFile(stream)


_FORMATS: tuple[tuple[str, re.Pattern[bytes], Callable[[IO[bytes]], ImageFile.ImageFile]], ...] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff"), JpegImagePlugin.jpeg_factory),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), PngImagePlugin.PngImageFile),
    ("GIF", re.compile(rb"GIF8[79]a"), GifImagePlugin.GifImageFile),
    ("WebP", re.compile(rb"RIFF.{4}WEBP", re.DOTALL), _WebP),
    # A text may begin with "BM": ask for one of the header sizes that exist, too.
    ("BMP", re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL), BmpImagePlugin.BmpImageFile),
    ("TIFF", re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImagePlugin.TiffImageFile),
    ("AVIF", re.compile(rb".{4}ftypavi[fs]", re.DOTALL), _open_avif),
)
_SIGNATURE_BYTES = 18
_TILE_SIZE_TAGS = (322, 323)  # TIFF's TileWidth and TileLength

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_callers_image = threading.Lock()
"""Held while a caller's image is loaded: several threads may have the same one."""


def load_image(
    source: Any, max_pixels: int, formats: Collection[str] = MEDIA_FORMATS, pool: MediaPool | None = None
) -> Image.Image:
    """Return one image as upright RGB.

    Args:
        source: encoded bytes; the path of a regular file; a `PIL.Image`; a numpy array or torch tensor `[h, w]`,
            `[h, w, c]` or `[c, h, w]` with 1, 3 or 4 channels, of uint8, uint16, bool, or floats from 0 to 1. Where
            both ends of a shape could be the channels, they are last in an array and first in a tensor.
        max_pixels: a larger image is refused.
        formats: file formats that are accepted.
        pool: decodes files; None to decode them in this process.

    Returns:
        A new RGB image; `source` stays as it was, save that a `PIL.Image` opened lazily has been read.

    Raises:
        MediaTooLargeError: the header (or shape) announces more pixels; `expected` and `got` have the numbers. Or it
            takes more memory than the pool allows.
        MediaError: no such file, no image, broken, truncated, empty, or values out of range.
        MediaTimeoutError: the pool's time is up.
    """
    if isinstance(source, Image.Image):
        return _from_image(source, max_pixels)
    if is_array(source) or is_tensor(source):
        pixels = channels_last(source)
        _check_size(pixels.shape[1], pixels.shape[0], max_pixels)
        return array_to_rgb(pixels)
    if isinstance(source, (str, os.PathLike)):
        source = read_file(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if pool is not None:
            return pool.image(source, name_of(source), max_pixels, formats)
        return decode_image(BytesIO(source), name_of(source), max_pixels, formats)
    raise MediaError(
        f"{type(source).__name__} is not an image; give a PIL image, an array, a tensor, a path or bytes",
        got=type(source).__name__,
    )


# --- encoded images -------------------------------------------------------------------------------------------------


def decode_image(stream: BinaryIO, name: str, max_pixels: int, formats: Collection[str]) -> Image.Image:
    """Return the image of a file in memory; arguments and errors as of `load_image`.

    Args:
        stream: at its start.
        name: of the file, for messages.
    """
    start = stream.read(_SIGNATURE_BYTES)
    stream.seek(0)
    if not start:
        raise MediaError(f"{name} is empty (0 bytes)")
    known = next((entry for entry in _FORMATS if entry[1].match(start)), None)
    if known is None:
        raise MediaError(f"{name} is not a JPEG, PNG, GIF, WebP, BMP or TIFF image")
    format_name, _, opener = known
    check_format(format_name.lower(), name, formats)
    with _errors_as_media(f"{name}: broken or truncated {format_name}", max_pixels):
        image = _open(stream, format_name, opener, max_pixels)
        image.load()
        orientation, rgb = _orientation(image), to_rgb(image)
        image.close()  # frees its memory before another copy is made
        return _upright(rgb, orientation)


def _open(
    stream: BinaryIO, format_name: str, opener: Callable[[IO[bytes]], ImageFile.ImageFile], max_pixels: int
) -> ImageFile.ImageFile:
    """Return the image with its header read and checked, before pixels are decoded."""
    image = opener(stream)
    _check_size(*image.size, max_pixels)
    if format_name == "PNG":
        image.verify()  # the decoder ignores checksums and a missing end; `verify` makes the object unusable
        stream.seek(0)
        image = opener(stream)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        # A tile is decoded whole, even where the image shows little of it.
        width, height = (image.tag_v2.get(tag, 1) for tag in _TILE_SIZE_TAGS)
        _check_size(width, height, max_pixels)
    return image


def _from_image(image: Image.Image, max_pixels: int) -> Image.Image:
    """Return an upright RGB copy of an image that the caller has open."""
    _check_size(*image.size, max_pixels)
    with _errors_as_media(f"the {image.mode} image cannot be read", max_pixels):
        with _callers_image:
            image.load()
            orientation = _orientation(image)
        return _upright(to_rgb(image), orientation)


@contextmanager
def _errors_as_media(message: str, max_pixels: int) -> Iterator[None]:
    """Raise `MediaError` for anything Pillow raises; Pillow's own texts contain addresses and are only chained."""
    try:
        yield
    except (MediaError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Where frames or tiles exceed their image, Pillow's plugins apply Pillow's own limit first.
        raise MediaTooLargeError(
            f"more pixels than the {max_pixels} allowed (max_image_pixels)", expected=max_pixels
        ) from error
    except Exception as error:
        raise MediaError(message) from error


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if not width or not height:
        raise MediaError(f"the image is empty ({width} x {height} pixels)", got=(width, height))
    if width * height > max_pixels:
        raise MediaTooLargeError(
            f"{width} x {height} = {width * height} pixels, more than the {max_pixels} allowed (max_image_pixels)",
            expected=max_pixels,
            got=width * height,
        )


def _orientation(image: Image.Image) -> Any:
    """EXIF orientation, 1 to 8; 1 where the metadata are broken, as in viewers."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, OverflowError, struct.error):
        return 1


def _upright(rgb: Image.Image, orientation: Any) -> Image.Image:
    turn = _UPRIGHT.get(orientation)
    upright = rgb if turn is None else rgb.transpose(turn)
    upright.info = {}  # else a second reader would turn it again
    return upright
