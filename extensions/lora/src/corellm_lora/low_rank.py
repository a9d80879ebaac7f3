"""What adapters of low rank add to the outputs of a linear layer: for each row the product of its own factors.

Knows slots and rows; knows neither adapters nor requests. In torch, the twin of what `register_low_rank` offers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corellm.modelling.linear_additions import PANEL, LowRankSlots

_AT_ONCE = 1 << 22
"""Numbers of gathered factors at once: 16 MB."""


class Slots:
    """The factors of one layer for as many adapters as run at once, in memory that stays where it is.

    Slot 0 has none: it adds nothing.

    Args:
        num_slots: slot 0 among them.
        max_rank: of factors.
        in_features, out_features: of the layer.
        dtype, device: of the model.
    """

    def __init__(
        self,
        num_slots: int,
        max_rank: int,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        max_rank, panels, group = -(-max_rank // 4) * 4, -(-out_features // PANEL), 4 // dtype.itemsize
        self.a = torch.zeros(num_slots, max_rank, in_features, dtype=dtype, device=device)
        self.b = torch.zeros(num_slots, panels, max_rank // group, PANEL, group, dtype=dtype, device=device)
        """The second factors, multiplied by their adapters' scale."""
        self.ranks = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """0 for a slot whose adapter has nothing for this layer."""

    def fill(self, slot: int, a: Tensor, b: Tensor, scale: float) -> None:
        """Put factors `[rank, in_features]` and `[out_features, rank]` into a slot."""
        self.clear(slot)
        rank = len(a)
        self.a[slot, :rank].copy_(a)
        panels, groups, _, group = self.b.shape[1:]
        padded = self.b.new_zeros(panels * PANEL, groups * group)
        padded[: len(b), :rank].copy_(b.float() * scale)
        self.b[slot].copy_(padded.view(panels, PANEL, groups, group).transpose(1, 2))
        self.ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self.a[slot].zero_()
        self.b[slot].zero_()
        self.ranks[slot] = 0


def add_low_rank(x: Tensor, output: Tensor, slots: LowRankSlots, slot_of_row: Tensor) -> None:
    """See `corellm.modelling.linear_additions.AddLowRank`.

    Sums are over one row's own numbers, in float32 and in one order: a product of matrices could sum in another order
    for another batch.
    """
    _, groups, _, group = slots.b.shape[1:]
    at_once = max(1, _AT_ONCE // max(slots.a[0].numel(), slots.b[0].numel()))
    for start in range(0, len(x), at_once):
        rows = slice(start, start + at_once)
        chosen = slot_of_row[rows]
        inner = (x[rows, None].float() * slots.a[chosen]).sum(-1).to(x.dtype)  # [rows, most]
        factors = slots.b[chosen]  # [rows, panels, groups, PANEL, group]
        product = (inner.float().view(-1, 1, groups, 1, group) * factors).sum((2, 4)).flatten(1)
        output[rows] = (output[rows].float() + product[:, : output.shape[1]]).to(output.dtype)
