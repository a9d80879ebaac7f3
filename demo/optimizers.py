"""The optimizers of both demo models and their learning rates: Muon for matrices inside layers, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import nn

from demo.muon import Muon


def build_optimizers(
    model: nn.Module, layers: tuple[str, ...], *, muon_rate: float, adam_rate: float, weight_decay: float
) -> list[torch.optim.Optimizer]:
    """Return the Muon and the AdamW optimizer of a model.

    Args:
        layers: substrings of the names of parameters inside layers.
        muon_rate, adam_rate: full learning rates, stored in each group as `full_lr`.
        weight_decay: for every matrix.
    """
    inside = [p for name, p in model.named_parameters() if p.dim() == 2 and any(part in name for part in layers)]
    taken = {id(p) for p in inside}
    outside = [p for p in model.parameters() if id(p) not in taken]
    matrices, vectors = [p for p in outside if p.dim() > 1], [p for p in outside if p.dim() <= 1]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(inside, lr=muon_rate, weight_decay=weight_decay),
        torch.optim.AdamW(
            [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=adam_rate,
            betas=(0.9, 0.98),
        ),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def learning_rate_share(step: int, steps: int, cooldown: int) -> float:
    """Return the share of the full learning rate: warm-up, constant, then cooldown to 1 %."""
    return min(1.0, (step + 1) / 100, max(0.01, (steps - step) / cooldown))
