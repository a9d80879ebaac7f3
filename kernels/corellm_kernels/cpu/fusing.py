"""Replaces layers of a model on a CPU: those of every device, then activations, patches, experts and linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from corellm.quantization import Quantize
from corellm.system.mapped_weights import release_mapped_weights
from corellm_kernels.cpu.activation_layers import fuse_activations
from corellm_kernels.cpu.encoder_attention import use_in_encoders
from corellm_kernels.cpu.experts import pack_experts
from corellm_kernels.cpu.kept_tensors import KeptTensors
from corellm_kernels.cpu.kernel_set import CPU_KERNELS
from corellm_kernels.cpu.linear import pack_linears
from corellm_kernels.cpu.packed_weights import PackedWeights
from corellm_kernels.cpu.patches import pack_patches
from corellm_kernels.cpu.router_weights import pack_routers
from corellm_kernels.fusion.fusing import fuse

if TYPE_CHECKING:
    from corellm.loading.weight_key import WeightKey


@torch.no_grad()
def fuse_for_cpu(model: nn.Module, quantize: Quantize | None = None, kept: WeightKey | None = None) -> list[str]:
    """Replace a model's layers, in place.

    Args:
        model: as of `fusion.fusing.fuse`.
        quantize: rounds weights of linear layers.
        kept: where packed weights are kept, and under which key; None for nowhere.

    Returns:
        Descriptions of what was replaced.
    """
    done = fuse(model, CPU_KERNELS)
    release_mapped_weights()  # which layers ran on, beside their replacements
    packed = PackedWeights(None if kept is None else KeptTensors(kept.folder, kept.key, kept.limit, kept.share))
    steps: list[tuple[Callable[[nn.Module], int], str]] = [
        (fuse_activations, "activation: one kernel"),
        (pack_patches, "convolution over patches: a product"),
        (use_in_encoders, "configuration: attention of encoders in one kernel"),
    ]
    for replace, what in steps:
        count = replace(model)
        if count:
            done.append(f"{count} x {what}")
    for what, count in pack_experts(model, quantize, packed).items():
        done.append(f"{count} x {what}")
    if count := pack_routers(model):
        done.append(f"{count} x router: packed weights")
    for bits, count in pack_linears(model, quantize, packed).items():
        done.append(f"{count} x Linear: packed weights" + (f" of {bits} bits" if bits else ""))
    packed.keep()
    return done
