"""Prints a matrix on the terminal: a row per file, a numbered column per text, the best of each row marked.

Nothing is said by colour alone. Names are never read as markup.
"""

from __future__ import annotations

import math
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corellm_pooling.similarity.entries import Embedded
from corellm_pooling.similarity.matrix import Matrix

_CELL = 7
"""Characters of a cosine, with its sign and the mark of the best."""
_SHORT, _LONG = 40, 100
"""Most characters of a text in a row, and in the list above."""


def print_matrix(matrix: Matrix) -> None:
    """Print the texts, then the matrix; of one that is wider than the terminal, the best texts alone."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    for number, column in enumerate(matrix.columns, 1):
        failed = f"  failed: {column.error}" if column.error else ""
        console.print(Text(f"{number:>3}  {_cut(column.entry.name, _LONG)}{failed}"), soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True, overflow="fold")
    longest = max(len(row.entry.name) for row in matrix.rows)
    fits = longest + len(matrix.columns) * (_CELL + 1) + _SHORT <= console.width
    shown = range(len(matrix.columns)) if fits else range(0)
    for number in shown:
        table.add_column(str(number + 1), justify="right", min_width=_CELL)
    table.add_column("best")
    for number, row in enumerate(matrix.rows):
        best = matrix.best(number)
        cells = [_cell(float(matrix.cosines[number, column]), column == best) for column in shown]
        table.add_row(Text(row.entry.name), *cells, _best(matrix, row, number, best))
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().split("\n")), end="")


def _cell(cosine: float, is_best: bool) -> Text:
    if math.isnan(cosine):
        return Text("-", style="dim")
    return Text(f"{'*' if is_best else ''}{cosine:.3f}", style="bold" if is_best else "")


def _best(matrix: Matrix, row: Embedded, number: int, best: int | None) -> Text:
    if row.error is not None:
        return Text(f"failed: {row.error}", style="red")
    if best is None:
        return Text("-")
    return Text(f"{_cut(matrix.columns[best].entry.name, _SHORT)} ({matrix.cosines[number, best]:.3f})")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
