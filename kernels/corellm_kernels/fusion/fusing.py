"""Replaces layers of a loaded model by faster ones that compute the same.

Knows no model family: layers are found by their children and attributes, and each runs beside its replacement on random
numbers. A layer stays if the two differ, if it fails, or if it has hooks, is in training, is quantized or shares its
weights. A fused decoder layer is: norm, projection, (norms of heads,) rotation and cache, attention, projection, sum
with norm, projection, activation, projection with sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from corellm_kernels.fusion.attention import fused_attention
from corellm_kernels.fusion.decoder_layer import fused_decoder_layer
from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import is_plain, owners, shared_parameters
from corellm_kernels.fusion.mlp import fused_mlp
from corellm_kernels.fusion.norms import fused_norm

_KINDS: list[tuple[Callable[[nn.Module, KernelSet], nn.Module | None], str]] = [
    (fused_norm, "one kernel"),
    (fused_mlp, "one projection for gate and up, one kernel for their product"),
    (fused_attention, "one projection for query, key and value, rotated where they are cached"),
    (fused_decoder_layer, "sums in the norm and the projection beside them"),
]
"""Replacements and their descriptions, in the order in which they are tried: later ones build on earlier ones."""


@torch.no_grad()
def fuse(model: nn.Module, kernels: KernelSet) -> list[str]:
    """Replace a model's layers, in place.

    Merged weights are made layer by layer, so that at most one layer's are in memory twice.

    Args:
        model: on its device, in its type, in `eval` mode, its parameters without gradients.
        kernels: of that device.

    Returns:
        Descriptions of what was replaced: `["32 x LlamaAttention: one projection for query, key and value, ..."]`.
    """
    shared = shared_parameters(model)
    done: Counter[tuple[str, str]] = Counter()
    for fused, what in _KINDS:
        for parent, name in owners(model):
            module = getattr(parent, name)
            made = fused(module, kernels) if is_plain(module, shared) else None
            if made is not None:
                done[type(module).__name__, what] += 1
                setattr(parent, name, made)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()  # the separate weights that were merged
    return [f"{count} x {name}: {what}" for (name, what), count in done.items()]
