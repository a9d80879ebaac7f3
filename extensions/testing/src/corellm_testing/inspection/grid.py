"""Finds the rows and columns of an item's embeddings. Knows no family: only positions, masks and counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import isqrt

from corellm.multimodal import PlaceholderRange
from corellm_testing.inspection.report import Grid


def find_grid(
    place: PlaceholderRange, positions: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]]
) -> Grid | None:
    """Return the grid of an item's embeddings, row by row, or None where it cannot be told or guessed.

    Args:
        place: its placeholder.
        positions: of the tokens that take embeddings, `(time, height, width)` for M-RoPE.
        sizes: height and width of each image in the model's input, where that has the shape of images. If there are
            several, such as crops, how they make up the item is told by positions alone.
    """
    found = _by_positions(positions)
    if found is not None or len(sizes) > 1:
        return found
    return _by_mask(place) or _by_count(place.num_embeds, *sizes)


def _by_positions(positions: Sequence[tuple[int, ...]]) -> Grid | None:
    """Return the grid of M-RoPE positions: width counts within a row, height over rows, both restart with a step."""
    if len(positions) < 2 or any(len(position) != 3 for position in positions):
        return None
    height, width = [p[1] for p in positions], [p[2] for p in positions]
    count = len(positions)
    columns = next((k for k in range(1, count) if width[k] != width[0] + k or height[k] != height[0]), count)
    firsts = height[::columns]
    rows = next((r for r in range(1, len(firsts)) if firsts[r] != firsts[0] + r), len(firsts))
    for k in range(count):
        first = k - k % (rows * columns)
        row, column = divmod(k - first, columns)
        shift = height[first] - height[0]  # of a step that comes after text
        if (height[k], width[k]) != (height[0] + shift + row, width[0] + shift + column):
            return None
    if count % (rows * columns) or rows * columns == 1:
        return None
    return Grid(count // (rows * columns), rows, columns, "by the tokens' positions")


def _by_mask(place: PlaceholderRange) -> Grid | None:
    """Return the grid of rows of equal length with other tokens between them."""
    rows = [len(list(run)) for embeds, run in groupby(place.is_embed or ()) if embeds]
    if len(rows) < 2 or len(set(rows)) > 1:
        return None
    return Grid(1, len(rows), rows[0], "by the mask: rows of equal length")


def _by_count(count: int, size: tuple[int, ...] = ()) -> Grid | None:
    """Return as many rows as fit the image's shape, else a square."""
    height, width = size or (1, 1)
    rows = isqrt(count * height // width)
    if count < 4 or not rows or rows * (count // rows) != count or rows * width != count // rows * height:
        return None
    why = "patches of one size" if size else f"{count} is a square number"
    return Grid(1, rows, count // rows, f"a guess: {why}")
