"""The cosine of every row with every column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corellm_pooling.similarity.entries import Embedded

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """Rows, columns and how alike they are."""

    rows: Sequence[Embedded]
    columns: Sequence[Embedded]
    cosines: Vectors
    """`[rows, columns]`; not a number where one of both has no embedding."""

    def best(self, row: int) -> int | None:
        """The column that is most like a row; None if there is none."""
        cosines = self.cosines[row]
        return None if np.isnan(cosines).all() else int(np.nanargmax(cosines))


def compare(rows: Sequence[Embedded], columns: Sequence[Embedded], *, center: bool = False) -> Matrix:
    """Return the cosines of rows and columns.

    Args:
        rows, columns: at least one each.
        center: subtract from every vector the mean of the rows, or of the columns, which have a direction in common.
    """
    sides = [_vectors(side) for side in (rows, columns)]
    if len({side.shape[1] for side in sides}) > 1:  # one has no embedding at all
        return Matrix(rows, columns, np.full((len(rows), len(columns)), np.nan, np.float32))
    one, other = (_unit(side - _mean(side) if center else side) for side in sides)
    return Matrix(rows, columns, one @ other.T)


def _vectors(side: Sequence[Embedded]) -> Vectors:
    """`[entries, width]`; not numbers where there is no embedding, width 0 if there is none."""
    width = next((len(embedded.vector) for embedded in side if embedded.vector is not None), 0)
    missing = np.full(width, np.nan, np.float32)
    return np.stack([missing if embedded.vector is None else embedded.vector for embedded in side])


def _mean(vectors: Vectors) -> Vectors:
    mean: Vectors = vectors[~np.isnan(vectors).any(axis=1)].mean(axis=0)
    return mean


def _unit(vectors: Vectors) -> Vectors:
    """Vectors of length one; not numbers for a vector of zeros."""
    with np.errstate(invalid="ignore"):
        unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
