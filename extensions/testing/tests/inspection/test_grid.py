"""Grids are found by positions and masks, guessed from counts, and otherwise None."""

from __future__ import annotations

from itertools import product

import pytest

from corellm.multimodal import PlaceholderRange
from corellm_testing.inspection.grid import find_grid


def mask(rows: int, columns: int) -> PlaceholderRange:
    """Rows of embeddings, a separator after each."""
    return PlaceholderRange(3, rows * (columns + 1), ((True,) * columns + (False,)) * rows)


def mrope(steps: int, rows: int, columns: int, restart: int = 0) -> list[tuple[int, ...]]:
    """M-RoPE positions; with `restart` every step begins that much later on all axes, as after text."""
    return [
        (7 + step * (restart or 1), 7 + step * restart + row, 7 + step * restart + column)
        for step, row, column in product(range(steps), range(rows), range(columns))
    ]


@pytest.mark.parametrize("restart", [0, 9])
@pytest.mark.parametrize("shape", [(1, 3, 5), (4, 2, 3), (2, 1, 6), (2, 6, 1), (3, 4, 4)])
def test_positions_tell(shape: tuple[int, int, int], restart: int) -> None:
    """A grid of any shape is found, also where text stands between the steps."""
    positions = mrope(*shape, restart)
    grid = find_grid(PlaceholderRange(7, len(positions)), positions, [])
    assert grid is not None
    assert (grid.steps, grid.rows, grid.columns) == shape


@pytest.mark.parametrize(
    ("place", "size", "expected"),
    [
        (mask(3, 4), None, (3, 4)),
        (mask(1, 4), None, (2, 2)),
        (PlaceholderRange(0, 3, (True, False, True)), None, (2, 1)),
        (PlaceholderRange(0, 5, (True, True, False, True, False)), None, None),
        (PlaceholderRange(0, 576), None, (24, 24)),
        (PlaceholderRange(0, 577), None, None),
        (PlaceholderRange(0, 32), (112, 224), (4, 8)),
        (PlaceholderRange(0, 32), (224, 112), (8, 4)),
        (PlaceholderRange(0, 36), (112, 224), None),
        (PlaceholderRange(0, 1), (1, 1), None),
    ],
)
def test_masks_and_counts_tell(
    place: PlaceholderRange, size: tuple[int, int] | None, expected: tuple[int, int] | None
) -> None:
    """Rows of equal length make a grid; else a count that fits the image's shape; else a square; else nothing."""
    positions = [(i,) for i in range(place.num_embeds)]
    grid = find_grid(place, positions, [size] if size else [])
    assert (grid and (grid.rows, grid.columns)) == expected


def test_other_orders_are_no_grid() -> None:
    """Positions that do not go row by row, and those of text, make no grid."""
    by_columns = [(0, row, column) for column, row in product(range(3), range(5))]
    as_text = [(i, i, i) for i in range(15)]
    ragged = mrope(1, 3, 5)[:-1]
    for positions in (by_columns, as_text, ragged):
        assert find_grid(PlaceholderRange(0, len(positions)), positions, []) is None


def test_crops_are_no_rows() -> None:
    """Six crops and the whole, of four tokens each with others between them: how they lie is not known."""
    mask = ((True,) * 4 + (False,)) * 7
    place = PlaceholderRange(3, len(mask), mask)
    positions = [(i,) for i in range(28)]
    assert find_grid(place, positions, [(8, 8)] * 7) is None
    assert find_grid(place, positions, [(8, 8)]) is not None
    frames = [(step, row, column) for step in (0, 1) for row in range(2) for column in range(3)]
    grid = find_grid(PlaceholderRange(0, 12), frames, [(8, 8)] * 2)
    assert grid is not None
    assert (grid.steps, grid.rows, grid.columns) == (2, 2, 3)
