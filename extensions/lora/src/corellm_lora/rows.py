"""Whose rows are whose when layers run: each row's slot, and the rows of slots that change more than factors do.

Knows slots and rows; knows no adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corellm.modelling.linear_additions import SomeRows
from corellm.system.transfers import upload


class Rows(NamedTuple):
    """The rows of a step, of the output layer, or of an encoder batch."""

    slots: Tensor
    """`[num_rows]` or more of them, int64; or `[1]`, for all rows. 0 for rows of `groups`."""
    groups: Mapping[int, SomeRows]
    """The rows of each slot that changes more than factors do."""

    @classmethod
    def of(cls, slots: NDArray[np.int64], changed: Collection[int], device: torch.device) -> Self:
        """Return rows of these slots, of which some change more than factors do."""
        present = [slot for slot in np.unique(slots).tolist() if slot in changed] if changed else []
        groups = {slot: upload(np.flatnonzero(slots == slot), device) for slot in present}
        others = np.where(np.isin(slots, present), 0, slots) if present else slots
        return cls(upload(others, device), groups)

    @classmethod
    def all_of(cls, slot: int, changed: Collection[int], device: torch.device) -> Self:
        """Return rows that all are of one slot."""
        groups: Mapping[int, SomeRows] = {slot: slice(None)} if slot in changed else {}
        return cls(torch.tensor([0 if groups else slot], device=device), groups)

    def slot_of_row(self, num_rows: int) -> Tensor:
        """Return each row's slot, `[num_rows]`, contiguous."""
        if len(self.slots) == 1:
            return self.slots.expand(num_rows).contiguous()
        return self.slots[:num_rows]
