"""The Triton kernels that fused layers use."""

from __future__ import annotations

from torch import Tensor, nn

from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import concatenated
from corellm_kernels.gpu.activations import gelu_and_mul, silu_and_mul
from corellm_kernels.gpu.head_norms import norm_heads
from corellm_kernels.gpu.norms import layer_norm, rms_norm


def add_product(residual: Tensor, x: Tensor, linear: nn.Module) -> None:
    """Add a linear layer's output to `residual`, in the matrix product if it is a plain layer without a bias."""
    if type(linear) is not nn.Linear or linear.bias is not None:
        residual.add_(linear(x))
    else:
        rows = residual.view(-1, residual.shape[-1])
        rows.addmm_(x.view(-1, x.shape[-1]), linear.weight.t())


GPU_KERNELS = KernelSet(
    rms_norm=rms_norm,
    layer_norm=layer_norm,
    norm_heads=norm_heads,
    silu_and_mul=silu_and_mul,
    gelu_and_mul=gelu_and_mul,
    add_product=add_product,
    join=concatenated,
)
