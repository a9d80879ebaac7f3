"""Similarities of vectors: cosine of two embeddings, late interaction (MaxSim) of two sets of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


def cosine(one: Vectors, other: Vectors) -> float:
    """Return the cosine of the angle between two vectors; 0 if one is zero."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else 0.0


def max_sim(query: Vectors, document: Vectors) -> float:
    """Return the sum over the query's tokens of the largest product with one of the document's tokens.

    Args:
        query: `[query_tokens, width]`.
        document: `[document_tokens, width]`.
    """
    return float((query @ document.T).max(axis=1).sum())
