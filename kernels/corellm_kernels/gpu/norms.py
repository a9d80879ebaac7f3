"""RMSNorm and LayerNorm over the last dimension, with the residual added on the way.

A row of `width` values is read once, kept in registers, and written once: `2 * width` elements (4 with a residual,
which is read and written too) and about 4 FLOPs an element, so the kernel is bound by memory. Sums are in float32.
RMSNorm rounds the normalized row to the input's type before the weight is multiplied, as transformers' layers do.

RMSNorm: Zhang and Sennrich 2019, arXiv 1910.07467. LayerNorm: Ba, Kiros and Hinton 2016, arXiv 1607.06450.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from corellm_kernels.gpu.launch import next_power_of_2


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, x_stride, residual_stride, out_stride, width, eps,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    factors = tl.load(weight + columns, mask=inside, other=0.0)  # asked for before the sum: nothing waits for it after
    kind = values.dtype
    if HAS_RESIDUAL:
        place = residual + row * residual_stride + columns
        values = (values.to(tl.float32) + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(kind)
        tl.store(place, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    tl.store(out + row * out_stride + columns, (wide * scale).to(kind) * factors, mask=inside)


@triton.jit
def _layer_norm_kernel(
    x, residual, weight, bias, out, x_stride, residual_stride, out_stride, width, eps,
    HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    factors = tl.load(weight + columns, mask=inside, other=0.0)
    if HAS_BIAS:
        shifts = tl.load(bias + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        place = residual + row * residual_stride + columns
        values = (values.to(tl.float32) + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(values.dtype)
        tl.store(place, values, mask=inside)
    wide = values.to(tl.float32)
    mean = tl.sum(wide, axis=0) / width
    centred = tl.where(inside, wide - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    result = centred * scale * factors.to(tl.float32)
    if HAS_BIAS:
        result += shifts.to(tl.float32)
    tl.store(out + row * out_stride + columns, result, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
    """Divide each row by its root mean square, and multiply by the weight.

    Args:
        x: `[..., width]`, rows contiguous.
        weight: `[width]`.
        eps: added to the mean square.
        residual: of `x`'s shape and type: `x` is added to it in place, and the sum is what is normalized.

    Returns:
        `[..., width]`, of the type that `x * weight` has.
    """
    rows, out = _rows(x), torch.empty(x.shape, dtype=torch.promote_types(x.dtype, weight.dtype), device=x.device)
    sums = rows if residual is None else _rows(residual)
    if rows.numel():
        block = next_power_of_2(x.shape[-1])
        _rms_norm_kernel[(len(rows),)](
            rows, sums, weight, out, rows.stride(0), sums.stride(0), x.shape[-1], x.shape[-1], eps,
            HAS_RESIDUAL=residual is not None, BLOCK=block, num_warps=_num_warps(block),
        )  # fmt: skip
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None) -> Tensor:
    """Centre each row, divide it by its standard deviation, multiply by the weight and add the bias.

    Args:
        x: `[..., width]`, rows contiguous.
        weight, bias: `[width]`.
        eps: added to the variance.
        residual: of `x`'s shape and type: `x` is added to it in place, and the sum is what is normalized.

    Returns:
        `[..., width]`, of `x`'s type.
    """
    rows, out = _rows(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = rows if residual is None else _rows(residual)
    if rows.numel():
        block = next_power_of_2(x.shape[-1])
        _layer_norm_kernel[(len(rows),)](
            rows, sums, weight, weight if bias is None else bias, out,
            rows.stride(0), sums.stride(0), x.shape[-1], x.shape[-1], eps,
            HAS_RESIDUAL=residual is not None, HAS_BIAS=bias is not None, BLOCK=block, num_warps=_num_warps(block),
        )  # fmt: skip
    return out


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
    """Do what `rms_norm` does, in plain torch."""
    if residual is not None:
        x = residual.add_(x)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def layer_norm_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None
) -> Tensor:
    """Do what `layer_norm` does, in plain torch."""
    if residual is not None:
        x = residual.add_(x)
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _rows(x: Tensor) -> Tensor:
    """`[rows, width]`, a view."""
    return x.view(-1, x.shape[-1])


def _num_warps(block: int) -> int:
    """16 bytes of half precision per thread and load, up to 16 warps."""
    return min(16, max(1, block // 256))
