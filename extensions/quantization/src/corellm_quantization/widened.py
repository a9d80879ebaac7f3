"""Weights in published formats that are no integers in groups: each is widened to a float as the format says.

Reads compressed-tensors' floats of 8 and 4 bits (FP8, MXFP8, NVFP4, MXFP4) and bitsandbytes' 4 bits (NF4, FP4). Knows
neither files nor models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from corellm.errors import CheckpointError

_FLOATS_OF_4_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1, of the OCP Microscaling specification, table 5."""
_BIAS_OF_EXPONENTS = 127
"""E8M0, of the same, section 5.4.1."""

Tensors = Mapping[str, Tensor]
Block = tuple[int | None, int | None]
"""Outputs and inputs that share a scale; None for all."""


def floats_of_8_bits(tensors: Tensors, block: Block) -> Tensor:
    """Return a weight `[n, k]` in float32, of floats of 8 bits."""
    weight, scale = tensors["weight"], tensors["weight_scale"]
    if weight.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise CheckpointError(f"weights of {weight.dtype}; floats of 8 bits can be read")
    return scaled(weight.float(), _exponents(scale) if scale.dtype == torch.uint8 else scale.float(), block)


def floats_of_4_bits(tensors: Tensors, block: Block) -> Tensor:
    """Return a weight `[n, k]` in float32: of floats of 4 bits, two in a byte, the lower first."""
    packed, scale = tensors["weight_packed"], tensors["weight_scale"]
    values = _looked_up(torch.tensor(_FLOATS_OF_4_BITS), packed, low_first=True)
    if scale.dtype == torch.uint8:
        return scaled(values, _exponents(scale), block)
    return scaled(values, scale.float() / tensors["weight_global_scale"].float(), block)


def bitsandbytes_4_bits(tensors: Tensors) -> Tensor:
    """Return a weight in float32, of values that the checkpoint lists: two in a byte, the higher first."""
    try:
        state = json.loads(bytes(tensors["weight_quant_state"].tolist()))
        shape, block = tuple(map(int, state["shape"])), int(state["blocksize"])
        nested = (int(state["nested_blocksize"]), float(state["nested_offset"])) if "nested_offset" in state else None
        if block < 1 or (nested is not None and nested[0] < 1):
            raise ValueError(f"blocks of {block} values, their scales in {nested}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"its quant_state is not what bitsandbytes writes: {error!r:.200}") from error
    scales = tensors["weight_absmax"]
    if nested is not None:
        of_scales = tensors["weight_nested_quant_map"][scales.long()]
        size, offset = nested
        scales = _blocks(of_scales, tensors["weight_nested_absmax"], size) + offset
    values = _looked_up(tensors["weight_quant_map"], tensors["weight"].flatten(), low_first=False)
    if len(shape) != 2 or values.numel() - shape[0] * shape[1] not in (0, 1):
        raise CheckpointError(f"{values.numel()} values of a weight {shape}")
    return _blocks(values[: shape[0] * shape[1]], scales, block).view(shape)


def _exponents(scale: Tensor) -> Tensor:
    return (scale.float() - _BIAS_OF_EXPONENTS).exp2()


def _looked_up(values: Tensor, packed: Tensor, *, low_first: bool) -> Tensor:
    """Return the values of each byte's halves, side by side along the last dimension."""
    low, high = (packed & 15).long(), (packed >> 4).long()
    halves = (low, high) if low_first else (high, low)
    return values.to(packed.device)[torch.stack(halves, -1)].flatten(-2)


def scaled(values: Tensor, scale: Tensor, block: Block) -> Tensor:
    """Return values times the scales of their blocks; the last blocks may be smaller."""
    sizes = [whole if size is None else min(size, whole) for size, whole in zip(block, values.shape, strict=True)]
    grid = tuple(-(-whole // size) for size, whole in zip(sizes, values.shape, strict=True))
    if scale.numel() != grid[0] * grid[1]:
        raise CheckpointError(f"scales {tuple(scale.shape)} of a weight {tuple(values.shape)}, expected {grid}")
    scale = scale.view(grid)
    for dim, size in enumerate(sizes):
        scale = scale.repeat_interleave(size, dim).narrow(dim, 0, values.shape[dim])
    return values * scale


def _blocks(values: Tensor, scales: Tensor, size: int) -> Tensor:
    """Return values in one row times the scales of their blocks."""
    if scales.numel() != -(-values.numel() // size):
        raise CheckpointError(f"{scales.numel()} scales of {values.numel()} values, {size} each")
    return values * scales.float().flatten().repeat_interleave(min(size, values.numel()))[: values.numel()]
