"""Linear layers whose weights are kept with a row for each input, as GPT-2's: they become usual ones.

So they are packed, rounded and added to as all others are. Knows no model family.
"""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from corellm.plain_linears import plain_linears


def transpose_linears(model: nn.Module) -> None:
    """Replace such layers inside `model` by linear ones of the same values, which stay where they are.

    The model says which they were: `transposed_linears`, their names.
    """
    names, transposed = {module: name for name, module in model.named_modules()}, []
    for parent, name in plain_linears(model, (Conv1D,)):
        layer = getattr(parent, name)
        if isinstance(layer, Conv1D):
            made = nn.Linear(layer.nx, layer.nf, device="meta").eval()
            made.weight = nn.Parameter(layer.weight.detach().t(), requires_grad=False)
            made.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
            setattr(parent, name, made)
            transposed.append(f"{names[parent]}.{name}".removeprefix("."))
    vars(model)["transposed_linears"] = tuple(transposed)
