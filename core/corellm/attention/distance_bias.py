"""What attention adds to scores for how far a key lies before its query (T5: arXiv 1910.10683, section 2.1).

In a flat batch over a paged cache there is no number for each pair of tokens, as transformers' `position_bias` has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DistanceBias:
    """What layers pass to attention as `position_bias`."""

    table: Tensor
    """`[num_tokens, num_heads, num_distances]` float32, or `[1, ...]` of all tokens alike: what is added to the scores
    of a token's query, scaled and capped, with the key that is so many tokens before it. The last number is that of all
    keys farther away, the first also that of keys behind the query."""

    def of_queries(self, queries: slice | Tensor) -> DistanceBias:
        """Return that of some tokens' queries."""
        return self if len(self.table) == 1 else DistanceBias(self.table[queries])

    def of_pairs(self, positions: Tensor, num_keys: int) -> Tensor:
        """Return what is added, `[num_queries, num_heads, num_keys]`.

        Args:
            positions: of the queries in their sequences, `[num_queries]`.
            num_keys: of each sequence, from its first on.
        """
        keys = torch.arange(num_keys, device=positions.device)
        distances = (positions[:, None] - keys).clamp(0, self.table.shape[-1] - 1)
        _, num_heads, num_distances = self.table.shape
        rows = self.table.expand(len(positions), num_heads, num_distances)
        return rows.gather(-1, distances[:, None].expand(-1, num_heads, -1))
