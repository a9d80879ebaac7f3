"""A search for the item that becomes the most tokens: over sizes, ratios, lengths and rates, the same in every run.

Knows how items of a size are made, and climbs; what an item becomes, the caller says.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, product
from typing import Any

from corellm.errors import RequestError
from corellm.media.type_checks import is_array, is_image
from corellm.multimodal.inputs import PlaceholderRange

Shape = tuple[int, ...]
"""`(width, height)` of an image, `(width, height, frames, rate)` of a video, `(samples,)` of audio.

A video's rate is in tenths of frames a second; 0 for one whose frames are not to be sampled.
"""
Count = Callable[[PlaceholderRange], int]

_RATIOS = (1, 1.2, 1.5, 2, 3, 5, 8, 14, 30, 60, 120, 199)
"""Longer side to shorter side; many processors refuse more than 200."""
_AREAS = (28**2, 400**2)
_FRAMES = (1, 2, 3, 5, 8, 16, 40)
_USUAL_RATE = 40
_RATES = (0, 5, _USUAL_RATE, 300)
_FACTORS = (0.5, 0.8, 0.95, 1.05, 1.25, 2)
_MOST = {"image": 2**20, "video": 2**21, "audio": 2**21}
"""Pixels, or samples, of an item that is tried: more take long to process."""


class Search:
    """Items that were tried, and what they became.

    Args:
        modality: of the items.
        sampling_rate: of audio, samples per second.
        place: returns an item's placeholder; raises a `RequestError` for an item that is refused.
    """

    def __init__(self, modality: str, sampling_rate: int, place: Callable[[Any], PlaceholderRange]) -> None:
        self.modality = modality
        self._rate, self._place = sampling_rate, place
        self.tried: dict[Shape, PlaceholderRange | None] = {}
        """None for an item that was refused."""
        self.failed: list[Shape] = []
        """Sizes of items for which something other than a `RequestError` was raised."""

    def item(self, shape: Shape) -> Any:
        """Return an item: of one colour, or silent, as only its size counts."""
        import numpy as np
        from PIL import Image as images

        if self.modality == "audio":
            return np.zeros(shape[0], np.float32)
        if self.modality == "image":
            return images.new("RGB", (shape[0], shape[1]), (90, 140, 200))
        width, height, frames, rate = shape
        known = {"fps": rate / 10} if rate else {"fps": _USUAL_RATE / 10, "do_sample_frames": False}
        return np.full((frames, height, width, 3), 90, np.uint8), known

    def try_all(self, shapes: Iterable[Shape]) -> None:
        """Process items that were not tried before, without those that take long."""
        for shape in shapes:
            if shape in self.tried or not self._is_cheap(shape):
                continue
            self.tried[shape] = None
            try:
                self.tried[shape] = self._place(self.item(shape))
            except RequestError:
                continue
            except Exception:  # told by the rule that is about it
                self.failed.append(shape)

    def climb(self, count: Count, tries: int) -> None:
        """From the largest item so far go on to larger ones beside it, until there are none or `tries` are made."""
        last, best = len(self.tried) + tries, self.largest(count)
        while best is not None and len(self.tried) < last:
            most = self.most(count)
            self.try_all(islice(self._near(best), last - len(self.tried)))
            if self.most(count) == most:
                return
            best = self.largest(count)

    def most(self, count: Count) -> int:
        """Return the most that `count` says of an item; 0 where all were refused."""
        return max((count(place) for place in self.tried.values() if place is not None), default=0)

    def largest(self, count: Count) -> Shape | None:
        """Return the shape of such an item, that with the most pixels or samples; None where all were refused."""
        most = self.most(count)
        tied = (shape for shape, place in self.tried.items() if place is not None and count(place) == most)
        return max(tied, key=_extent, default=None)

    def largest_first(self, count: Count, most: int) -> list[Shape]:
        """Return up to `most` shapes of items, each of another count."""
        found: dict[int, Shape] = {}
        for shape, place in self.tried.items():
            if place is not None:
                found.setdefault(count(place), shape)
        return _largest_first(found, most)

    def starts(self, dummy: Shape | None) -> Iterator[Shape]:
        """Yield shapes to begin with: of all ratios and lengths, around the size of the adapter's dummy."""
        if self.modality == "audio":
            yield from ((round(1.4**power),) for power in range(round(math.log(64 * self._rate, 1.4)) + 1))
            yield from () if dummy is None else ((dummy[0] + more,) for more in (0, 1, -1, dummy[0]))
            return
        area = 0 if dummy is None else dummy[0] * dummy[1]
        areas = [*_AREAS, *(round(area * scale) for scale in (0.25, 1, 4) if area)]
        if self.modality == "image":
            yield from ((1, 1), (1, 200), (200, 1))
            yield from () if dummy is None else (dummy,)
            yield from _sizes(areas, _RATIOS)
            return
        usual = (160, 120) if dummy is None else dummy[:2]
        frames = _FRAMES if dummy is None else (*_FRAMES, dummy[2], dummy[2] + 1, 2 * dummy[2])
        yield from ((*size, 3, _USUAL_RATE) for size in _sizes(areas, (1, 2, 8, 199)))
        yield from ((*usual, *rest) for rest in product(frames, _RATES))
        yield from ((28, 4200, *rest) for rest in product(frames, (0, _USUAL_RATE)))

    def around(self, shape: Shape) -> Iterator[Shape]:
        """Yield a shape, its double, and others of two ratios and all rates."""
        yield shape
        yield tuple(2 * side for side in shape)
        if self.modality != "audio":
            width, height, *rest = shape
            yield (4 * width, max(1, height // 4), *rest)
            yield (max(1, width // 4), 4 * height, *rest)
        if self.modality == "video":
            yield from ((*shape[:3], rate) for rate in _RATES)

    def _near(self, shape: Shape) -> Iterator[Shape]:
        """Yield shapes beside one: a side or the length changed, both sides, the ratio alone, another rate."""
        sizes, rate = shape[:3], shape[3:]
        for place, value in enumerate(sizes):
            for other in (*(round(value * factor) for factor in _FACTORS), value + 1, value - 1):
                yield (*sizes[:place], other, *sizes[place + 1 :], *rate)
        if self.modality != "audio":
            width, height, *rest = shape
            yield (height, width, *rest)
            for factor in _FACTORS:
                yield (round(width * factor), round(height / factor), *rest)
                yield (round(width * factor), round(height * factor), *rest)
        if rate:
            yield from ((*sizes, other) for other in _RATES)

    def _is_cheap(self, shape: Shape) -> bool:
        return min(shape[:3]) > 0 and _extent(shape) <= _MOST[self.modality]


def _extent(shape: Shape) -> int:
    """Return the number of pixels, or of samples."""
    return math.prod(shape[:3])


def shape_of(modality: str, item: Any) -> Shape | None:
    """Return the shape of an item as an adapter makes its dummies; None of a form that does not tell."""
    if modality == "image":
        return (item.width, item.height) if is_image(item) else None
    pixels = item[0] if isinstance(item, tuple) else item
    if not is_array(pixels) or pixels.ndim != (4 if modality == "video" else 1):
        return None
    return (len(pixels),) if modality == "audio" else (pixels.shape[2], pixels.shape[1], len(pixels), 0)


def likely_shapes(processor: Any, most: int) -> list[Shape]:
    """Return up to `most` images that become the most tokens by transformers' own count from their sizes alone.

    Hundreds of sizes are counted, without a pixel; none where the processor does not count.

    Args:
        processor: a Hugging Face processor, or one with an image processor of transformers.
        most: number of images; all of different counts.
    """
    tokens = getattr(processor, "_get_num_multimodal_tokens", None)
    patches = getattr(getattr(processor, "image_processor", None), "get_number_of_image_patches", None)
    if tokens is not None:
        count = partial(_counted, tokens)
    elif patches is not None:
        count = partial(_patches, patches)
    else:
        return []
    found: dict[int, Shape] = {}
    with _no_logs():
        areas, ratios = [32**2 * 4**power for power in range(6)], [1.12**power for power in range(47)]
        for width, height in _sizes(areas, ratios):
            try:
                found.setdefault(count(width, height), (width, height))
            except Exception:  # the processor refuses this size
                continue
    return _largest_first(found, most)


def _largest_first(found: Mapping[int, Shape], most: int) -> list[Shape]:
    return [found[count] for count in sorted(found, reverse=True)[:most]]


def _counted(tokens: Callable[..., Any], width: int, height: int) -> int:
    counts: Sequence[int] = tokens(image_sizes=[[height, width]]).num_image_tokens  # arguments would stay in its class
    return int(counts[0])


def _patches(patches: Callable[..., Any], width: int, height: int) -> int:
    return int(patches(height, width, {}))


def _sizes(areas: Iterable[float], ratios: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield widths and heights of all areas and ratios, upright and lying."""
    for area, ratio in product(areas, ratios):
        long, short = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        yield long, short
        yield short, long


@contextmanager
def _no_logs() -> Iterator[None]:
    """Without log messages: some processors warn at each call."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
