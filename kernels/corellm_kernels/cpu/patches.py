"""Convolutions over patches that do not overlap, as products: how vision encoders embed an image's patches.

torch's own convolution in bfloat16 takes a hundred times as long where the processor has no instructions for it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corellm.plain_linears import without_values
from corellm_kernels.cpu.linear import PackedLinear
from corellm_kernels.fusion.layer_swap import is_plain


class PatchProduct(nn.Module):
    """A convolution whose stride is the size of its kernel: see `corellm.plain_linears.AsLinear`.

    It has the attributes of the convolution, `stride` and others, and is an instance of its class: Parakeet's forward
    pass asks for `nn.Conv2d` before it masks padding.
    """

    as_linear = "_product"

    def __init__(self, convolution: nn.Conv2d | nn.Conv3d) -> None:
        nn.Module.__init__(self)
        for name in type(convolution).__constants__:
            setattr(self, name, getattr(convolution, name))
        weight = convolution.weight.detach()
        self.size = tuple(weight.shape[2:])
        linear = nn.Linear(weight[0].numel(), len(weight), bias=convolution.bias is not None, device="meta")
        linear.weight = nn.Parameter(weight.flatten(1), requires_grad=False)
        if convolution.bias is not None:
            linear.bias = nn.Parameter(convolution.bias.detach(), requires_grad=False)
        self._product = PackedLinear(linear)
        self.weight = without_values(weight)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return `[n, out_channels, ...patches]` for `[n, in_channels, ...pixels]`, less those beyond whole patches."""
        counts = [pixels // size for pixels, size in zip(x.shape[2:], self.size, strict=True)]
        for axis, (count, size) in enumerate(zip(counts, self.size, strict=True), start=2):
            x = x.narrow(axis, 0, count * size)
        divided = x.reshape(*x.shape[:2], *(n for pair in zip(counts, self.size, strict=True) for n in pair))
        axes = range(2, divided.dim(), 2)
        patches = divided.permute(0, *axes, 1, *(axis + 1 for axis in axes)).reshape(len(x), *counts, -1)
        output: Tensor = self._product(patches)
        return output.movedim(-1, 1)


class PatchProduct2d(PatchProduct, nn.Conv2d):
    """Takes the place of an `nn.Conv2d`."""


class PatchProduct3d(PatchProduct, nn.Conv3d):
    """Takes the place of an `nn.Conv3d`."""


def pack_patches(model: nn.Module) -> int:
    """Replace every convolution over patches in float32 or bfloat16 inside `model`; return how many."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            made: PatchProduct | None = None
            if type(child) is nn.Conv2d and _is_of_patches(child):
                made = PatchProduct2d(child)
            elif type(child) is nn.Conv3d and _is_of_patches(child):
                made = PatchProduct3d(child)
            if made is not None:
                setattr(parent, name, made)
                count += 1
    return count


def _is_of_patches(convolution: nn.Conv2d | nn.Conv3d) -> bool:
    dense = convolution.groups == 1 and set(convolution.dilation) == {1} and set(convolution.padding) == {0}
    supported = convolution.weight.dtype in (torch.float32, torch.bfloat16)
    return (
        dense
        and is_plain(convolution, frozenset())
        and supported
        and tuple(convolution.stride) == tuple(convolution.kernel_size)
    )
