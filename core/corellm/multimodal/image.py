"""One picture, from whatever it comes as, to an upright 8-bit RGB `PIL.Image` without metadata.

Knows file formats, pixel modes and array layouts; it knows neither requests nor models. Only the formats named here are
read, a header's size is checked before anything is decoded, and a picture that cannot be read whole is an error, never
a black one. What users would see in a viewer is what the model gets:

- EXIF orientation is applied; of an animation the first frame is taken (of an open `PIL.Image` the current one);
- transparency is laid on white;
- 16-bit values (modes `I;16`, `I`) are scaled to 8 bits, floats (mode `F`) likewise from 0 to 1; neither is clipped.

Pillow's plugins are called directly: `Image.open` warns, and refuses, by a limit that is global to the process.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np
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
)

from corellm.errors import MediaError, MediaTooLargeError
from corellm.multimodal.files import name_of, open_regular_file, shown_path
from corellm.multimodal.items import is_tensor

if TYPE_CHECKING:
    import torch

_FORMATS: tuple[tuple[str, re.Pattern[bytes], Callable[[IO[bytes]], ImageFile.ImageFile]], ...] = (
    ("JPEG", re.compile(rb"\xff\xd8\xff"), JpegImagePlugin.jpeg_factory),
    ("PNG", re.compile(rb"\x89PNG\r\n\x1a\n"), PngImagePlugin.PngImageFile),
    ("GIF", re.compile(rb"GIF8[79]a"), GifImagePlugin.GifImageFile),
    ("WebP", re.compile(rb"RIFF.{4}WEBP", re.DOTALL), WebPImagePlugin.WebPImageFile),
    # A text may begin with "BM": ask for one of the header sizes that exist, too.
    ("BMP", re.compile(rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL), BmpImagePlugin.BmpImageFile),
    ("TIFF", re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImagePlugin.TiffImageFile),
)
_SIGNATURE_BYTES = 18
_TILE_SIZE_TAGS = (322, 323)  # TIFF's TileWidth and TileLength

_CHANNELS = (1, 3, 4)
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MAY_BE_TRANSPARENT = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa"})

_callers_picture = threading.Lock()
"""Held while a picture of the caller's is read: the same one may come in several requests, from several threads."""


def load_image(source: Any, max_pixels: int) -> Image.Image:
    """Read one picture.

    Args:
        source: encoded bytes; the path of a regular file; a `PIL.Image`; a numpy array or torch tensor `[h, w]`,
            `[h, w, c]` or `[c, h, w]` with 1, 3 or 4 channels, of uint8, uint16, bool, or floats from 0 to 1. Where
            both ends of a shape could be the channels, they are last in an array and first in a tensor.
        max_pixels: a larger picture is refused.

    Returns:
        A new RGB picture; `source` stays as it was, save that a `PIL.Image` opened lazily has been read.

    Raises:
        MediaTooLargeError: the header (or shape) announces more pixels; `expected` and `got` have the numbers.
        MediaError: no such file, no picture, broken, truncated, empty, or of values out of range.
    """
    if isinstance(source, Image.Image):
        return _from_picture(source, max_pixels)
    if isinstance(source, np.ndarray):
        return _from_array(source, max_pixels, channels_first=False)
    if is_tensor(source):
        return _from_array(_array_of(source), max_pixels, channels_first=True)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(BytesIO(source), name_of(source), max_pixels)
    if isinstance(source, (str, os.PathLike)):
        with open_regular_file(source) as stream:
            return _decode(stream, shown_path(source), max_pixels)
    raise MediaError(
        f"{type(source).__name__} is not a picture; give a PIL image, an array, a tensor, a path or bytes",
        got=type(source).__name__,
    )


# --- encoded pictures -------------------------------------------------------------------------------------------------


def _decode(stream: BinaryIO, name: str, max_pixels: int) -> Image.Image:
    start = stream.read(_SIGNATURE_BYTES)
    stream.seek(0)
    if not start:
        raise MediaError(f"{name} is empty (0 bytes)")
    known = next((entry for entry in _FORMATS if entry[1].match(start)), None)
    if known is None:
        raise MediaError(f"{name} is not a JPEG, PNG, GIF, WebP, BMP or TIFF image")
    format_name, _, opener = known
    with _errors_as_media(f"{name}: broken or truncated {format_name}", max_pixels):
        picture = opener(stream)
        _check_size(*picture.size, max_pixels)
        if isinstance(picture, PngImagePlugin.PngImageFile):
            picture.verify()  # the decoder skips checksums and a missing end; this object cannot be read afterwards
            stream.seek(0)
            picture = opener(stream)
        if isinstance(picture, TiffImagePlugin.TiffImageFile):
            # A tile is decoded whole, whatever little of it the picture shows.
            width, height = (picture.tag_v2.get(tag, 1) for tag in _TILE_SIZE_TAGS)
            _check_size(width, height, max_pixels)
        picture.load()
        return _upright_rgb(picture, _orientation(picture))


def _from_picture(picture: Image.Image, max_pixels: int) -> Image.Image:
    """The same for a picture that the caller has open, on a copy: conversions of palettes work in place."""
    _check_size(*picture.size, max_pixels)
    with _errors_as_media(f"the {picture.mode} picture cannot be read", max_pixels):
        with _callers_picture:
            picture.load()
            orientation = _orientation(picture)
            copy = picture.copy()
        return _upright_rgb(copy, orientation)


@contextmanager
def _errors_as_media(message: str, max_pixels: int) -> Iterator[None]:
    """Whatever Pillow raises while it reads a picture is the picture's fault; its texts hold addresses, so they stay
    in the chained exception.
    """
    try:
        yield
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Where frames or tiles exceed their picture, Pillow's plugins apply its own limit before we can look.
        raise MediaTooLargeError(f"more pixels than allowed ({max_pixels})", expected=max_pixels) from error
    except Exception as error:
        raise MediaError(message) from error


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if not width or not height:
        raise MediaError(f"the picture is empty ({width} x {height} pixels)", got=(width, height))
    if width * height > max_pixels:
        raise MediaTooLargeError(
            f"{width} x {height} = {width * height} pixels, more than the {max_pixels} allowed",
            expected=max_pixels,
            got=width * height,
        )


def _orientation(picture: Image.Image) -> Any:
    """EXIF orientation, 1 to 8. A picture whose metadata are broken is shown as it lies, as viewers do."""
    try:
        return picture.getexif().get(ExifTags.Base.Orientation, 1)
    except (OSError, SyntaxError, ValueError, TypeError, LookupError, OverflowError, struct.error):
        return 1


# --- pixels -----------------------------------------------------------------------------------------------------------


def _upright_rgb(picture: Image.Image, orientation: Any) -> Image.Image:
    turn = _UPRIGHT.get(orientation)
    rgb = _to_rgb(picture if turn is None else picture.transpose(turn))
    rgb.info = {}  # a second reader must not turn it again
    return rgb


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "I":  # 32 bits wide, but by convention of the formats that have it 16-bit values
        values = np.asarray(picture)
        _check_range(values, 65535)
        return _grey(values.astype(np.uint16))
    if picture.mode == "F" or picture.mode.startswith("I;16"):
        return _grey(np.asarray(picture))
    if picture.mode == "La":  # Pillow converts premultiplied grey to its plain form only
        picture = picture.convert("LA")
    if picture.mode in _MAY_BE_TRANSPARENT and picture.has_transparency_data:
        layer = picture.convert("RGBA")
        paper = Image.new("RGB", layer.size, "white")
        paper.paste(layer, mask=layer.getchannel("A"))
        return paper
    if picture.mode == "RGB" and type(picture) is Image.Image:  # in memory, with no file behind: ours already
        return picture
    return picture.convert("RGB")


def _grey(values: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray(_to_uint8(values)).convert("RGB")


def _to_uint8(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Scale pixel values of any shape to 0..255."""
    kind = values.dtype.kind
    if values.dtype == np.uint8:
        return values
    if kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    if kind == "f":
        _check_range(values, 1)
        scaled: np.ndarray[Any, Any] = np.rint(values.astype(np.float32) * 255)
        return scaled.astype(np.uint8)
    if kind == "u" and values.itemsize == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 / 255 = 257, rounded
    raise MediaError(f"pixels of dtype {values.dtype}; give uint8, uint16 or floats in 0..1", got=str(values.dtype))


def _check_range(values: np.ndarray[Any, Any], high: int) -> None:
    low_found, high_found = values.min(), values.max()
    if not (np.isfinite(low_found) and np.isfinite(high_found)):
        raise MediaError("pixels that are not finite (NaN or infinity)")
    if low_found < 0 or high_found > high:
        raise MediaError(
            f"pixels of dtype {values.dtype} must be from 0 to {high}, got {low_found:g} to {high_found:g}; scale them "
            "or give uint8 (precomputed embeddings go under 'image_embeds')",
            expected=(0, high),
            got=(low_found.item(), high_found.item()),
        )


# --- arrays and tensors -----------------------------------------------------------------------------------------------


def _array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise MediaError("a picture must be a dense tensor that holds values")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy has no bfloat16
    return tensor.resolve_neg().resolve_conj().numpy()


def _from_array(array: np.ndarray[Any, Any], max_pixels: int, *, channels_first: bool) -> Image.Image:
    pixels = _channels_last(array, channels_first)
    _check_size(pixels.shape[1], pixels.shape[0], max_pixels)
    return _to_rgb(Image.fromarray(np.ascontiguousarray(_to_uint8(pixels))))


def _channels_last(array: np.ndarray[Any, Any], channels_first: bool) -> np.ndarray[Any, Any]:
    """A view `[h, w]` (grey), `[h, w, 3]` or `[h, w, 4]`."""
    if array.ndim == 2:
        return array
    if array.ndim == 3:
        first, last = array.shape[0] in _CHANNELS, array.shape[-1] in _CHANNELS
        if first and (channels_first or not last):
            array, last = np.moveaxis(array, 0, -1), True
        if last:
            return array[..., 0] if array.shape[-1] == 1 else array
    raise MediaError(
        f"shape {tuple(array.shape)} is not a picture's: [h, w], [h, w, c] or [c, h, w] with 1, 3 or 4 channels "
        "(precomputed embeddings go under 'image_embeds')",
        got=tuple(array.shape),
    )
