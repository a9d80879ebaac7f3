"""SiLU and GELU of a feed-forward network's inner values, multiplied by the second half where there is one.

Gated: `2 * width` values of a row are read and `width` written; else `width` and `width`. Some 10 FLOPs an element, so
the kernel is bound by memory. The function is in float32 and rounded to the input's type before the product, as
transformers' `act_fn(gate) * up` is.

GELU: Hendrycks and Gimpel 2016, arXiv 1606.08415. Gated units: Shazeer 2020, arXiv 2002.05202. The approximation's
hyperbolic tangent is a logistic function: `(1 + tanh(z)) / 2 = sigmoid(2 * z)`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from corellm_kernels.fusion.kernel_set import Approximation
from corellm_kernels.gpu.launch import next_power_of_2


@triton.jit
def _activation_kernel(
    x, out, x_stride, out_stride, width,
    FUNCTION: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = x + row * x_stride + columns
    values = tl.load(place, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    if FUNCTION == "silu":
        result = wide * tl.sigmoid(wide)
    elif FUNCTION == "tanh":
        # 2 * sqrt(2 / pi)
        result = wide * tl.sigmoid(1.5957691216057308 * (wide + 0.044715 * wide * wide * wide))
    else:
        # 1 / sqrt(2)
        result = 0.5 * wide * (1.0 + tl.erf(wide * 0.7071067811865476))
    if GATED:
        factors = tl.load(place + width, mask=inside, other=0.0)
        result = result.to(values.dtype).to(tl.float32) * factors.to(tl.float32)
    tl.store(out + row * out_stride + columns, result, mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of each row, times the second half.

    Args:
        gate_up: `[..., 2 * width]`, rows contiguous.

    Returns:
        `[..., width]`.
    """
    return _launch(gate_up, "silu", gated=True)


def gelu_and_mul(gate_up: Tensor, approximate: Approximation = "none") -> Tensor:
    """GELU of the first half of each row, times the second half.

    Args:
        gate_up: `[..., 2 * width]`, rows contiguous.
        approximate: `"tanh"` for the approximation by the hyperbolic tangent.

    Returns:
        `[..., width]`.
    """
    return _launch(gate_up, approximate, gated=True)


def gelu(x: Tensor, approximate: Approximation = "none") -> Tensor:
    """GELU.

    Args:
        x: `[..., width]`, rows contiguous.
        approximate: `"tanh"` for the approximation by the hyperbolic tangent.

    Returns:
        `[..., width]`.
    """
    return _launch(x, approximate, gated=False)


def silu_and_mul_reference(gate_up: Tensor) -> Tensor:
    """Do what `silu_and_mul` does, in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def gelu_and_mul_reference(gate_up: Tensor, approximate: Approximation = "none") -> Tensor:
    """Do what `gelu_and_mul` does, in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate=approximate) * up


def gelu_reference(x: Tensor, approximate: Approximation = "none") -> Tensor:
    """Do what `gelu` does, in plain torch."""
    return functional.gelu(x, approximate=approximate)


def _launch(x: Tensor, function: str, *, gated: bool) -> Tensor:
    rows = x.view(-1, x.shape[-1])
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if out.numel():
        # 16 bytes of half precision per thread and load; small blocks, so that one row makes several programs
        block = min(1024, next_power_of_2(width))
        _activation_kernel[(len(rows), triton.cdiv(width, block))](
            rows, out, rows.stride(0), width, width,
            FUNCTION=function, GATED=gated, BLOCK=block, num_warps=max(1, block // 256),
        )  # fmt: skip
    return out
