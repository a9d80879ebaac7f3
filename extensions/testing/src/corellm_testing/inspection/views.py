"""Makes the images that a report shows of an item: the original, and the model's input.

Knows decoded media and tensors with the shape of images or spectrograms. It does not know the processor in between:
which frames it took, what it cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from corellm.media.type_checks import is_tensor
from corellm_testing.inspection.report import Grid, View

_MOST = 12
"""Most views of one item, or of one tensor."""
_LONGEST = 512
"""Most pixels of a view's longer side."""
_COLUMNS = 600
"""Most columns of a view over time."""


def media_views(modality: str, media: Any, grid: Grid | None) -> list[View]:
    """Return views of the original: the image, frames from the whole video, or the audio's waveform."""
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
    """Yield named `[3, height, width]` tensors, also those within `[n, 3, height, width]` ones."""
    for name, tensor in tensors.items():
        if not is_tensor(tensor) or not tensor.is_floating_point() or tensor.ndim not in (3, 4):
            continue
        if tensor.shape[-3] == 3 and min(tensor.shape[-2:]) > 3:
            images = tensor.reshape(-1, *tensor.shape[-3:])
            many = len(images) > 1
            yield from ((f"{name}[{i}]" if many else name, image) for i, image in enumerate(images))


def tensor_views(modality: str, tensors: Mapping[str, Any], grid: Grid | None) -> list[View]:
    """Return views of the model's input, where it has the shape of images, or for audio of a spectrogram."""
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
    """Return the first `count` numbers, or as many as are shown of them, evenly spaced."""
    return [i * count // min(count, _MOST) for i in range(min(count, _MOST))]


def _scaled(name: str, tensor: Any, step: int | None = None, *, over_time: bool = False) -> View:
    """Return a view of `[height, width(, 3)]` values: black for the least finite one, white for the greatest."""
    values = tensor.double().cpu().numpy()
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
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
    """Return a view of the least and greatest sample of each short stretch."""
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
    return View(f"the audio, {len(samples)} samples", "image/svg+xml", svg.encode(), width, 100, step, over_time=True)
