"""What adapters of low rank add to the outputs of a linear layer: for each row the product of its own factors.

Knows slots and rows; knows neither adapters nor requests. In torch, the twin of what `register_low_rank` offers.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
        max_rank = -(-max_rank // 4) * 4
        self.a = torch.zeros(num_slots, max_rank, in_features, dtype=dtype, device=device)
        self.b = torch.zeros(num_slots, max_rank, out_features, dtype=dtype, device=device)
        """The second factors, transposed, and multiplied by their adapters' scale."""
        self.ranks = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """0 for a slot whose adapter has nothing for this layer."""

    def fill(self, slot: int, a: Tensor, b: Tensor, scale: float) -> None:
        """Put factors `[rank, in_features]` and `[out_features, rank]` into a slot."""
        self.clear(slot)
        rank = len(a)
        self.a[slot, :rank].copy_(a)
        self.b[slot, :rank].copy_(b.float().t() * scale)
        self.ranks[slot] = rank

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self.a[slot].zero_()
        self.b[slot].zero_()
        self.ranks[slot] = 0


def add_low_rank(x: Tensor, output: Tensor, a: Tensor, b: Tensor, ranks: Tensor, slot_of_row: Tensor) -> None:
    """See `corellm.modelling.linear_additions.AddLowRank`.

    Sums are over one row's own numbers, in float32 and in one order: a product of matrices could sum in another order
    for another batch.
    """
    at_once = max(1, _AT_ONCE // (a.shape[1] * max(a.shape[2], b.shape[2])))
    for start in range(0, len(x), at_once):
        rows = slice(start, start + at_once)
        chosen = slot_of_row[rows]
        inner = (x[rows, None].float() * a[chosen]).sum(-1)  # [rows, rank]
        product = (inner[:, :, None] * b[chosen]).sum(1)  # [rows, out_features]
        output[rows] = (output[rows].float() + product).to(output.dtype)
