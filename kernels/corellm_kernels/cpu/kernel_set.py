"""The C++ kernels that fused layers use."""

from __future__ import annotations

from corellm_kernels.cpu.activations import gelu_and_mul, silu_and_mul
from corellm_kernels.cpu.linear import add_product, joined
from corellm_kernels.cpu.norms import layer_norm, norm_heads, rms_norm
from corellm_kernels.fusion.kernel_set import KernelSet

CPU_KERNELS = KernelSet(
    rms_norm=rms_norm,
    layer_norm=layer_norm,
    norm_heads=norm_heads,
    silu_and_mul=silu_and_mul,
    gelu_and_mul=gelu_and_mul,
    add_product=add_product,
    join=joined,
)
