"""Similarities of vectors: cosine of two embeddings, late interaction (MaxSim) of two sets of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

_PRODUCTS = 1 << 22
"""Products of tokens that are in memory at once: two long texts have billions."""


def cosine(one: Vectors, other: Vectors) -> float:
    """Return the cosine of the angle between two vectors, from -1 to 1; 0 if one is zero."""
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return max(-1.0, min(1.0, float(one @ other) / norms)) if norms else 0.0


def max_sim(query: Vectors, document: Vectors) -> float:
    """Return the sum over the query's tokens of the largest product with one of the document's tokens.

    0 if either has no token, as a text of words that have no vector.

    Args:
        query: `[query_tokens, width]`.
        document: `[document_tokens, width]`.
    """
    if not (len(query) and len(document)):
        return 0.0
    step = max(1, _PRODUCTS // len(document))
    best = [(query[start : start + step] @ document.T).max(axis=1) for start in range(0, len(query), step)]
    return float(np.concatenate(best).sum())
