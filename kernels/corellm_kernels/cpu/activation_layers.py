"""Modules of activations, replaced by ones of one kernel; they are recognized by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from corellm_kernels.cpu.activations import activation
from corellm_kernels.fusion.layer_swap import agree, draw, is_plain, outcome

KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
}
_DTYPES = (torch.float32, torch.bfloat16)


class FusedActivation(nn.Module):
    """An activation of each element, in one kernel."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of `x`, of any shape."""
        if x.dtype not in _DTYPES or not x.dim():
            return KNOWN[self.name](x)
        return activation(x.contiguous(), self.name)


def fuse_activations(model: nn.Module) -> int:
    """Replace modules that compute one of the known activations; return how many."""
    near, far = torch.linspace(-6, 6, 64, dtype=torch.float32), draw(torch.empty(0, dtype=torch.float32), 64) * 20
    points = torch.stack([near, far])
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if [*child.children(), *child.parameters(), *child.buffers()] or not is_plain(child, frozenset()):
                continue
            given = outcome(partial(child, points.clone()))  # some work in place
            known = next((key for key, function in KNOWN.items() if agree(given, function(points))), None)
            if known is not None:
                setattr(parent, name, FusedActivation(known))
                count += 1
    return count
