"""Arguments that a decoder is given beside embeddings, made again for any step's tokens: masks of items, added rows.

Knows what they look like; knows no model, and not what a decoder does with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ItemMask:
    """A value at the tokens that take embeddings, zero at text: `[1, num_tokens]`, or so for every channel."""

    value: int
    dtype: torch.dtype
    channels: tuple[int, ...]

    def of(self, is_multimodal: Tensor) -> Tensor:
        """Return the argument for tokens of which some take embeddings, `[num_tokens]` bool."""
        mask = is_multimodal.to(self.dtype) * self.value
        return mask.view(1, -1, *(1 for _ in self.channels)).expand(1, len(mask), *self.channels).to(self.dtype)


@dataclass(frozen=True)
class AddedRows:
    """Rows `[num_embeds, width]` for several of the decoder's layers: a list of them, or a mapping."""

    keys: tuple[Any, ...] | None
    """Keys of a mapping; None for a list."""
    count: int

    def of(self, rows: Sequence[Tensor]) -> list[Tensor] | dict[Any, Tensor]:
        """Return the argument of the rows of each layer."""
        return list(rows) if self.keys is None else dict(zip(self.keys, rows, strict=True))

    def rows(self, value: Any) -> list[Tensor]:
        """Return the rows of each layer of the argument."""
        return list(value if self.keys is None else (value[key] for key in self.keys))


def added_rows(value: Any) -> AddedRows | None:
    """Return how rows for several layers are given; None of any other argument."""
    if not isinstance(value, Mapping | Sequence):
        return None
    rows = list(value.values()) if isinstance(value, Mapping) else value
    if not all(isinstance(row, Tensor) and row.dim() == 2 and row.shape == rows[0].shape for row in rows):
        return None
    return AddedRows(tuple(value) if isinstance(value, Mapping) else None, len(rows))


def item_mask(value: Any, places: Tensor) -> ItemMask | None:
    """Return how an argument follows from which tokens take embeddings, `[num_tokens]`; None where it does not."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.shape[:2] != (1, len(places)):
        return None
    known = ItemMask(int(value.max()), value.dtype, tuple(value.shape[2:]))
    return known if torch.equal(known.of(places), value) else None
