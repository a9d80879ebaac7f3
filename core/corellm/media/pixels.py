"""Pixels of any mode, layout and depth, to 8-bit RGB.

Knows Pillow's modes, arrays and tensors; no files, no limits. Images are converted in bands of rows, so that temporary
memory does not grow with the image.

- Transparency becomes white.
- 16-bit values (modes `I;16`, `I`) are scaled to 8 bits, floats (mode `F`) likewise from 0 to 1; neither is clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from corellm.errors import MediaError
from corellm.media.type_checks import is_tensor

_BAND_PIXELS = 1 << 18
_CHANNELS = (1, 3, 4)
_MAY_BE_TRANSPARENT = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa"})


def to_rgb(image: Image.Image) -> Image.Image:
    """A new RGB image; `image`, which must be loaded, stays as it is.

    Raises:
        MediaError: values out of range or not finite.
    """
    if not (_is_deep(image) or _is_transparent(image)):
        return image.convert("RGB")
    # Bands are copies: Pillow converts palettes in place.
    return _joined(image.size, lambda top, bottom: _to_rgb(image.crop((0, top, image.width, bottom))))


def array_to_rgb(pixels: Any) -> Image.Image:
    """An RGB image of an array or tensor `[h, w]` (grey), `[h, w, 3]` or `[h, w, 4]`.

    Raises:
        MediaError: an unsupported dtype, values out of range or not finite.
    """
    if is_tensor(pixels) and (str(pixels.layout) != "torch.strided" or pixels.is_quantized or pixels.is_meta):
        raise MediaError("an image must be a dense tensor that holds values")
    height, width = pixels.shape[:2]
    return _joined((width, height), lambda top, bottom: _to_rgb(_to_image(pixels[top:bottom])))


def channels_last(pixels: Any) -> Any:
    """A view `[h, w]` (grey), `[h, w, 3]` or `[h, w, 4]` of an array or tensor.

    Where both ends of a shape could be the channels, they are last in an array and first in a tensor.

    Raises:
        MediaError: no image has this shape.
    """
    if pixels.ndim == 2:
        return pixels
    if pixels.ndim == 3:
        first, last = pixels.shape[0] in _CHANNELS, pixels.shape[-1] in _CHANNELS
        if first and (is_tensor(pixels) or not last):
            pixels, last = pixels.swapaxes(0, 1).swapaxes(1, 2), True
        if last:
            return pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    raise MediaError(
        f"shape {tuple(pixels.shape)} is not an image's: [h, w], [h, w, c] or [c, h, w] with 1, 3 or 4 channels "
        "(precomputed embeddings go under 'image_embeds')",
        got=tuple(pixels.shape),
    )


def _joined(size: tuple[int, int], band: Callable[[int, int], Image.Image]) -> Image.Image:
    """An RGB image made of bands; `band(top, bottom)` returns the rows `[top, bottom)`."""
    width, height = size
    rows = max(1, _BAND_PIXELS // width)
    if rows >= height:
        return band(0, height)
    rgb = Image.new("RGB", size, None)
    for top in range(0, height, rows):
        rgb.paste(band(top, min(top + rows, height)), (0, top))
    return rgb


def _is_deep(image: Image.Image) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in _MAY_BE_TRANSPARENT and image.has_transparency_data


def _to_rgb(image: Image.Image) -> Image.Image:
    """An RGB image; may change `image` or return it, so pass a copy."""
    if _is_deep(image):
        values = np.asarray(image)
        if image.mode == "I":  # 32 bits wide, but file formats store 16-bit values in it
            _check_range(values, 65535)
            values = values.astype(np.uint16)
        return Image.fromarray(_to_uint8(values)).convert("RGB")
    if image.mode == "La":  # Pillow converts premultiplied grey to its plain form only
        image = image.convert("LA")
    if _is_transparent(image):
        layer = image.convert("RGBA")
        paper = Image.new("RGB", layer.size, "white")
        paper.paste(layer, mask=layer.getchannel("A"))
        return paper
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_image(pixels: Any) -> Image.Image:
    """An image of an array or tensor."""
    if is_tensor(pixels):
        pixels = pixels.detach().cpu()
        if pixels.is_floating_point():
            pixels = pixels.float()  # numpy has no bfloat16
        pixels = pixels.resolve_neg().resolve_conj().numpy()
    return Image.fromarray(np.ascontiguousarray(_to_uint8(pixels)))


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
