"""Images of an item: as it was given, and as the model sees it.

Knows decoded media and tensors with the shape of images or spectrograms. What a processor does in between it does not
know: which frames it took, what it cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from corellm.inspection.report import Grid, View
from corellm.multimodal.nested import is_tensor

_MOST = 12
"""Images of one item, or of one tensor."""
_LONGEST = 512
"""Pixels of an image's longer side."""
_COLUMNS = 600
"""Of an image over time."""


def media_views(modality: str, media: Any, grid: Grid | None) -> list[View]:
    """The item as it was given: the image, frames from the whole clip, the sound's waveform; under a grid if any."""
    if modality == "image":
        return [_image(media, f"the image, {media.width} x {media.height}", 0 if grid else None)]
    if modality == "audio":
        return [_waveform(media, 0 if grid else None)]
    if grid is None:
        wanted = _spread(media.num_frames)
        return [
            _image(Image.fromarray(frame), f"frame {i + 1} of {media.num_frames}")
            for i, frame in zip(wanted, media.read(wanted), strict=True)
        ]
    steps = _spread(grid.steps)
    wanted = [(2 * step + 1) * media.num_frames // (2 * grid.steps) for step in steps]
    return [
        _image(Image.fromarray(frame), f"step {step + 1} of {grid.steps}, near frame {i + 1}", step)
        for step, i, frame in zip(steps, wanted, media.read(wanted), strict=True)
    ]


def image_tensors(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`[3, height, width]` tensors, and those that `[n, 3, height, width]` ones are made of, with their names."""
    for name, tensor in tensors.items():
        if not is_tensor(tensor) or not tensor.is_floating_point() or tensor.ndim not in (3, 4):
            continue
        if tensor.shape[-3] == 3 and min(tensor.shape[-2:]) > 3:
            images = tensor.reshape(-1, *tensor.shape[-3:])
            many = len(images) > 1
            yield from ((f"{name}[{i}]" if many else name, image) for i, image in enumerate(images))


def tensor_views(modality: str, tensors: Mapping[str, Any], grid: Grid | None) -> list[View]:
    """What the model sees, where it has the shape of images, or for a sound of a spectrogram."""
    images = list(image_tensors(tensors))
    on_grid = grid is not None and len(images) == grid.steps
    views = [
        _scaled(name, images[i][1].movedim(0, -1), i if on_grid else None)
        for i in _spread(len(images))
        for name in [images[i][0]]
    ]
    if modality == "audio":
        views += [
            _scaled(name, tensor.flip(0), over_time=True)
            for name, tensor in tensors.items()
            if is_tensor(tensor) and tensor.is_floating_point() and tensor.ndim == 2
        ]
    return views


def _spread(count: int) -> list[int]:
    """All of `count` numbers, or as many as are shown of them, evenly spaced."""
    return [i * count // min(count, _MOST) for i in range(min(count, _MOST))]


def _scaled(name: str, tensor: Any, step: int | None = None, *, over_time: bool = False) -> View:
    """`[height, width]` or `[height, width, 3]`, least value black, greatest white."""
    values = np.nan_to_num(tensor.float().cpu().numpy())
    low, high = float(values.min()), float(values.max())
    pixels = ((values - low) / ((high - low) or 1) * 255).round().astype(np.uint8)
    shape = " x ".join(map(str, reversed(values.shape[:2])))
    caption = f"{name}, {shape}, from {low:.3g} to {high:.3g}"
    return _image(Image.fromarray(pixels), caption, step, over_time=over_time)


def _image(image: Image.Image, caption: str, step: int | None = None, *, over_time: bool = False) -> View:
    scale = min(1, _LONGEST / (image.height if over_time else max(image.size)))
    columns = min(image.width, _COLUMNS) if over_time else round(image.width * scale)
    if image.width > columns or scale < 1:
        image = image.resize((max(1, columns), max(1, round(image.height * scale))), Image.Resampling.BOX)
    out = BytesIO()
    image.save(out, "PNG")
    return View(caption, "image/png", out.getvalue(), image.width, image.height, step, over_time)


def _waveform(samples: Any, step: int | None) -> View:
    """Least and greatest sample of each short stretch."""
    loudest = float(np.abs(samples).max()) or 1.0
    stretches = np.array_split(samples / loudest * 44, min(_COLUMNS, len(samples)))
    bars = "".join(
        f"M{i + 0.5} {50 - part.max() - 0.5:.1f}V{50 - part.min() + 0.5:.1f}" for i, part in enumerate(stretches)
    )
    width = len(stretches)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 100" width="{width}" height="100" '
        f'preserveAspectRatio="none"><path d="{bars}" stroke="#4a90c4"/></svg>'
    )
    return View(f"the sound, {len(samples)} samples", "image/svg+xml", svg.encode(), width, 100, step, over_time=True)
