"""The sizes of items that become the most tokens, of those that fit a prompt: found by counting for many sizes.

Knows sizes and counts; knows no processor and makes no item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

_SMALL_IMAGE = (90, 70)
_LARGEST_SIDE = 16_384
_RATIOS = tuple(2 ** (step / 2) for step in range(-4, 5))  # a quarter to four
_SIDES = tuple(56 * 2 ** (step / 8) for step in range(57))  # 56 to 7168
_SHARES = (0.25, 0.4, 0.5, 0.65, 0.8, 0.9, 1.0)
"""Shares of the operator's bounds that are tried as sides."""
_NARROW = (7, 14, 28, 40, 47, 56, 80, 112, 160)
_LONG = (8, 16, 32, 64, 100, 150, 190, 199)
"""Narrow sides, and how many times as long the others are: some processors keep a least width, whatever the length."""
_WIDTHS = tuple(range(28, 900, 28))
"""Widths for which the height is found that fills a prompt."""
_FEW_FRAMES = 4
"""Frames of the videos by which the side is chosen."""
_VIDEO_SIDES = (28, 56, 112, 224, 336, 448, 672, 896)
"""Sides of the frames that are tried."""
_MOST_PIXELS = 1 << 26
"""Pixels of all frames of a video that is tried: it is made and processed."""
_SECONDS = (1, 3, 10, 30, 60, 120, 300, 600, 1800)
_PADDED = 60
"""Seconds from which on longer audio has more tokens, unless it is cut: some processors fill up a shorter one."""


class _Tried(NamedTuple):
    size: int
    tokens: float
    """Infinite where the processor refuses the size."""


def largest_image(
    count: Callable[[int, int], int | None], seq_len: int, bounds: Mapping[str, int], *, quick: bool = True
) -> tuple[int, int]:
    """Return the width and height of the image of most tokens that fits: of a grid of sizes, then of those near.

    Where larger ones do not fit, also of the heights that fill the prompt for some widths.

    Args:
        count: tokens of an image of a width and a height; None where it is refused.
        seq_len: tokens of a prompt.
        bounds: the operator's, of `width` and `height`.
        quick: counting takes no time; fewer sizes are tried where it does.
    """
    most = bounds.get("width", _LARGEST_SIDE), bounds.get("height", _LARGEST_SIDE)
    best = 0, 0, _SMALL_IMAGE
    some_do_not_fit = False

    def consider(width: float, height: float) -> float:
        nonlocal best, some_do_not_fit
        size = max(1, min(round(width), most[0])), max(1, min(round(height), most[1]))
        tokens = count(*size)
        if tokens is None:
            return math.inf
        if tokens <= seq_len:
            best = max(best, (tokens, -size[0] * size[1], size))
        some_do_not_fit |= tokens > seq_len
        return tokens

    for share in _SHARES if bounds else ():
        for other in _SHARES:
            consider(share * most[0], other * most[1])
    for narrow in _NARROW:
        for times in _LONG:
            consider(narrow, times * narrow)
            consider(times * narrow, narrow)
    coarse = 1 if quick else 4
    for side in _SIDES[::coarse]:
        for ratio in _RATIOS[:: max(1, coarse // 2)]:
            consider(side * ratio**0.5, side / ratio**0.5)
    for step in (56, 28, 14, 7) if quick else (112, 28):
        width, height = best[2]
        for dx in (-step, 0, step):
            for dy in (-step, 0, step):
                consider(width + dx, height + dy)
    for width in _WIDTHS[::coarse] if some_do_not_fit else ():
        if best[0] == seq_len:
            break

        def of_height(height: int, width: int = width) -> float:
            return consider(width, height)

        low, high = (_Tried(height, of_height(height)) for height in (28, min(most[1], _LONG[-1] * width)))
        if low.tokens <= seq_len < high.tokens:
            _last_that_fits(of_height, seq_len, low, high, 4)
    return best[2]


def largest_video(
    count: Callable[[int, int, int], int | None], seq_len: int, bounds: Mapping[str, int]
) -> tuple[int, int, int]:
    """Return the frames, width and height of the video of most tokens that fits: the largest frames first.

    Args:
        count: tokens of a video of so many frames of a width and a height; None where it is refused.
        seq_len: tokens of a prompt.
        bounds: the operator's, of `width` and `height`; most frames are `num_frames`.
    """
    few, best = min(_FEW_FRAMES, bounds["num_frames"]), _Tried(_VIDEO_SIDES[0], 0)
    for side in _VIDEO_SIDES:
        tokens = count(few, min(side, bounds.get("width", side)), min(side, bounds.get("height", side)))
        if tokens is not None and best.tokens < tokens <= seq_len:
            best = _Tried(side, tokens)
    width, height = min(best.size, bounds.get("width", best.size)), min(best.size, bounds.get("height", best.size))

    def of_frames(frames: int) -> float:
        tokens = count(frames, width, height)
        return math.inf if tokens is None else tokens

    most = min(bounds["num_frames"], max(few, _MOST_PIXELS // (width * height)))
    fits, tried = _Tried(few, best.tokens), _Tried(few, best.tokens)
    while tried.size < most and tried.tokens <= seq_len:
        fits, tried = tried, _Tried(min(2 * tried.size, most), of_frames(min(2 * tried.size, most)))
    if tried.tokens <= seq_len:
        return tried.size, width, height
    return _last_that_fits(of_frames, seq_len, fits, tried, 1).size, width, height


def longest_audio(count: Callable[[int], int | None], rate: int, seq_len: int) -> int:
    """Return the samples of the audio of most tokens that fits, of half an hour at most; a second where none fits.

    Args:
        count: tokens of an audio of so many samples; None where it is refused.
        rate: samples per second.
        seq_len: tokens of a prompt.
    """

    def of_samples(samples: int) -> float:
        tokens = count(samples)
        return math.inf if tokens is None else tokens

    best = _Tried(rate, 0)
    for seconds in _SECONDS:
        tried = _Tried(seconds * rate, of_samples(seconds * rate))
        if tried.tokens > seq_len:
            precision = 1 if tried.tokens == math.inf else rate // 100  # what is refused may be stated in seconds
            return _last_that_fits(of_samples, seq_len, best, tried, precision).size
        if tried.tokens > best.tokens:
            best = tried
        elif seconds > _PADDED:
            break
    return best.size


def _last_that_fits(
    count: Callable[[int], float], seq_len: int, fits: _Tried, beyond: _Tried, precision: int
) -> _Tried:
    """Return the largest size that fits, between one that does and one that does not.

    Tokens grow with the size, mostly in proportion: every other try is where they would then fill the prompt.
    """
    halve = False
    while fits.tokens < seq_len and beyond.tokens - fits.tokens > 1 and beyond.size - fits.size > precision:
        in_proportion = (seq_len - fits.tokens) / (beyond.tokens - fits.tokens)
        share = 0.5 if halve or beyond.tokens == math.inf else in_proportion
        halve = not halve
        between = beyond.size - fits.size
        size = fits.size + max(precision, min(round(share * between), between - precision))
        tried = _Tried(size, count(size))
        if tried.tokens <= seq_len:
            fits = tried
        else:
            beyond = tried
    return fits
