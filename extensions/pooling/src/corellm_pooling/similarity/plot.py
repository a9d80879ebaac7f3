"""Draws a matrix: images beside its rows, texts above its columns, the best of each row framed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from corellm_pooling.similarity.matrix import Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle
    from PIL.Image import Image

_ROW, _COLUMN = 0.8, 1.2
"""Inches of a cell; cells are smaller where there are many."""
_LONGEST = 24.0
"""Inches of the matrix, at most."""
_LEGIBLE = 0.3
"""Smallest height of a row, in inches, that has an image, a name and numbers."""
_LINE, _NUM_LINES, _NAME = 17, 5, 24
"""Characters in a line of a text, lines of it, characters of a file's name."""
_BAR = 0.2
"""Inches of the colour scale's width."""
_CLOSE = 0.3
"""Cosines within such a range have three digits."""
_THUMBNAIL = 160
"""Pixels of an image's longer side."""


def save_plot(matrix: Matrix, title: str, load: Callable[[str], Image], path: str) -> None:
    """Write the drawing to a file; its ending gives the format.

    Args:
        matrix: what is drawn.
        title: above it.
        load: the image in a file.
        path: of the drawing.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    num_rows, num_columns = matrix.cosines.shape
    row, column = min(_ROW, _LONGEST / num_rows), min(_COLUMN, _LONGEST / num_columns)
    figure = Figure(figsize=(num_columns * column + 4, num_rows * row + 2.2), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(np.ma.masked_invalid(matrix.cosines), cmap=colormaps["YlGnBu"].with_extremes(bad="#eeeeee"))
    beside = axes.inset_axes((1.02, 0, _BAR / (num_columns * column + row), 1))
    figure.colorbar(drawn, cax=beside, label="cosine").outline.set_visible(False)
    axes.set_title(title, fontsize=12, pad=12, parse_math=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    _label_columns(axes, matrix, upright=column < _COLUMN)
    if row >= _LEGIBLE:
        _label_rows(axes, matrix)
        _draw_images(axes, matrix, load, row / column)
    if min(row, column / 2) >= _LEGIBLE:
        _write_cells(axes, matrix)
    axes.set_aspect(row / column)
    figure.savefig(path, dpi=120, bbox_inches="tight", pad_inches=0.15)


def _label_columns(axes: Axes, matrix: Matrix, *, upright: bool) -> None:
    texts = [" ".join(column.entry.name.split()) for column in matrix.columns]
    wrapped = [
        "\n".join(textwrap.wrap(text, _LINE * 2 if upright else _LINE, max_lines=_NUM_LINES, placeholder=" …"))
        for text in texts
    ]
    axes.set_xticks(
        range(len(texts)), wrapped, rotation=90 if upright else 0, va="bottom", fontsize=9, parse_math=False
    )


def _label_rows(axes: Axes, matrix: Matrix) -> None:
    names = [row.entry.name for row in matrix.rows]
    short = [name if len(name) <= _NAME else f"…{name[1 - _NAME :]}" for name in names]
    axes.set_yticks(range(len(short)), short, fontsize=9, parse_math=False)


def _draw_images(axes: Axes, matrix: Matrix, load: Callable[[str], Image], side: float) -> None:
    """Draw images into squares on the left; `side` is that of a row's height in columns."""
    right, box = -0.5 - 0.12 * side, 0.92 * side
    for number, embedded in enumerate(matrix.rows):
        if embedded.entry.modality != "image" or embedded.error is not None:
            continue
        image = load(embedded.entry.content)
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        width, height = (length / max(image.size) for length in image.size)
        middle = right - box / 2
        x, y = box * width / 2, 0.46 * height
        axes.imshow(image, extent=(middle - x, middle + x, number + y, number - y), clip_on=False)
        axes.add_patch(_frame(middle - x, number - y, 2 * x, 2 * y, "#b0b0b0", 0.6))
    num_rows, num_columns = matrix.cosines.shape
    axes.set(xlim=(right - box - 0.08 * side, num_columns - 0.5), ylim=(num_rows - 0.5, -0.5))


def _write_cells(axes: Axes, matrix: Matrix) -> None:
    """Write the numbers, and frame the best of each row."""
    num_rows, num_columns = matrix.cosines.shape
    axes.hlines(np.arange(0.5, num_rows - 1), -0.5, num_columns - 0.5, color="white", linewidth=1.5)
    axes.vlines(np.arange(0.5, num_columns - 1), -0.5, num_rows - 0.5, color="white", linewidth=1.5)
    known = matrix.cosines[~np.isnan(matrix.cosines)]
    low, high = known.min(initial=1), known.max(initial=-1)
    digits = 3 if high - low < _CLOSE else 2
    for (row, column), cosine in np.ndenumerate(matrix.cosines):
        is_best = column == matrix.best(row)
        if not np.isnan(cosine):
            colour = "white" if cosine - low > 0.55 * (high - low) else "black"
            weight = "bold" if is_best else "normal"
            axes.text(
                column, row, f"{cosine:.{digits}f}", ha="center", va="center", color=colour, weight=weight, fontsize=10
            )
        if is_best:
            axes.add_patch(_frame(column - 0.46, row - 0.44, 0.92, 0.88, "#e07000", 2.5))
    for row, embedded in enumerate(matrix.rows):
        if embedded.error is not None:
            axes.text((len(matrix.columns) - 1) / 2, row, "failed", ha="center", va="center", color="#606060")


def _frame(x: float, y: float, width: float, height: float, colour: str, line: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, fill=False, edgecolor=colour, linewidth=line)
