"""What an adapter changes of the embeddings of tokens: all of them, some tokens', or by factors.

Knows one table and tensors; knows neither slots nor whose rows are whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from corellm.modelling.linear_additions import AddLowRank
from corellm_lora.adapter_files import Values
from corellm_lora.changes import OWN
from corellm_lora.low_rank import Slots


@dataclass
class TableChange:
    """A change of the embeddings."""

    add_low_rank: AddLowRank
    scale: float
    """What the table's embeddings are multiplied by when they are read."""
    table: Tensor | None = None
    """`[num_tokens, width]`."""
    tokens: Tensor | None = None
    """Tokens with an embedding of their own, in order."""
    embeddings: Tensor | None = None
    """Embeddings of `tokens`, in the same order."""
    inward: Tensor | None = None
    """The first factor transposed, `[num_tokens, rank]`."""
    outward: Slots | None = None
    """The second factor in slot 1, behind a first one that changes nothing."""

    @classmethod
    def of(cls, values: Values, embeddings: Any, add_low_rank: AddLowRank) -> Self:
        """Return a change of a module's embeddings."""
        weight: Tensor = embeddings.weight
        made = cls(add_low_rank, float(getattr(embeddings, "embed_scale", 1.0)))
        tensors = {part: tensor.to(weight.device) for part, tensor in values.tensors.items()}
        if (table := tensors.get(f"{OWN}weight")) is not None:
            made.table = table.to(weight.dtype)
        if (own := tensors.get("tokens")) is not None:
            tokens = torch.tensor(values.token_ids, device=weight.device)
            made.tokens, order = tokens.sort()
            made.embeddings = own.to(weight.dtype)[order]
        if "a" in tensors:
            rank = len(tensors["a"])
            slots = Slots(2, rank, rank, weight.shape[1], weight.dtype, weight.device)
            slots.fill(1, torch.eye(rank, device=weight.device), tensors["b"], values.scale * made.scale)
            made.inward, made.outward = tensors["a"].t().to(weight.dtype).contiguous(), slots
        return made

    def __call__(self, token_ids: Tensor, output: Tensor) -> None:
        """Change embeddings `[num_rows, width]` in place; `token_ids` are `[num_rows]`."""
        made = output
        scale = torch.tensor(self.scale, dtype=made.dtype, device=made.device)
        if self.table is not None:
            made = functional.embedding(token_ids, self.table) * scale
        if self.tokens is not None and self.embeddings is not None:
            places = torch.searchsorted(self.tokens, token_ids).clamp(max=len(self.tokens) - 1)
            is_own = (self.tokens[places] == token_ids)[:, None]
            made = torch.where(is_own, self.embeddings[places] * scale, made)
        if self.inward is not None and self.outward is not None:
            made, slots = made.contiguous(), self.outward
            slot_of_row = torch.ones(len(token_ids), dtype=torch.int64, device=token_ids.device)
            self.add_low_rank(self.inward[token_ids], made, slots, slot_of_row)
        output.copy_(made)
