"""How keys and values are stored in the paged cache: as they are, or quantized.

A quantized cache holds `round(x / scale)`, to nearest even, with one scale for each token and head: the largest
magnitude over 127 (int8) or over 448 (float8 e4m3), 1 where all is zero. Float8 is made from float32 with integers:
compute capability 8.0 has no instruction for it, and Triton's interpreter rounds it wrongly. Half the bytes of 16-bit
types, and 4 for each head's scale.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def largest_of(x):
    """Return the largest magnitude of each head of `[heads, columns]`."""
    return tl.max(tl.abs(x), axis=1)


@triton.jit
def scale_of(largest, cache):
    """Return the scale by which a head with this largest magnitude is divided."""
    limit = 127.0 if cache.dtype.element_ty == tl.int8 else 448.0
    scale = tl.div_rn(largest, tl.full(largest.shape, limit, tl.float32))
    return tl.where(scale > 0.0, scale, 1.0)


@triton.jit
def _e4m3(x):
    """Return the bits of the nearest float8 e4m3, ties to even, at most 448."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # 20 of 23 bits of the mantissa go; the bias of the exponent goes from 127 to 7
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # below 2**-6 they lie 2**-9 apart, as float32 does from 2**14 on
    tiny = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (tl.where(size < 0.015625, tiny, normal) | sign).to(tl.uint8)


@triton.jit
def store(place, x, scale, inside):
    """Store `x`, `[heads, columns]` in float32, divided by the heads' scales if the cache is quantized."""
    kind = place.dtype.element_ty
    if kind == tl.int8:
        whole = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
        whole = tl.minimum(tl.maximum(whole, -127.0), 127.0)
        # 1.5 * 2**23: the sum's last bits are the nearest integer, in two's complement
        tl.store(place, (whole + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8), mask=inside)
    elif kind == tl.uint8:
        tl.store(place, _e4m3(tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))), mask=inside)
    else:
        tl.store(place, x.to(kind), mask=inside)


def as_stored(cache: Tensor) -> Tensor:
    """Return float8 as the bytes that `store` writes."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


def store_reference(x: Tensor, cache: Tensor, scales: Tensor | None, place: tuple[Tensor, Tensor]) -> None:
    """Write `x`, `[n, heads, size]`, to `n` blocks and offsets of a cache, and its scales to `scales`."""
    if scales is None:
        cache[place] = x.to(cache.dtype)
        return
    limit = 127 if cache.dtype == torch.int8 else 448
    largest = x.float().abs().amax(-1)
    scale = largest / torch.full_like(largest, limit)  # CUDA multiplies by the reciprocal of a number
    scales[place] = scale = torch.where(scale > 0, scale, 1.0)
    whole = (x.float() / scale[..., None]).clamp(-limit, limit)
    stored = (whole.round() if cache.dtype == torch.int8 else whole).to(cache.dtype)
    cache.view(torch.uint8)[place] = stored.view(torch.uint8)
