"""Rows of the types that GGUF names, as integers in groups: each weight is exactly what the type says.

A row is blocks of 32 or 256 weights, each with scales of its own. Other types are left to the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from corellm_kernels.grouped_linear import GroupedWeight, Kind

_Kind = GGMLQuantizationType
FLOATS = {_Kind.F32: torch.float32, _Kind.F16: torch.float16, _Kind.BF16: torch.bfloat16}
"""Types of single numbers."""


class Groups(NamedTuple):
    """Integers `[blocks, weights]` of blocks, and scales and zeros `[blocks, groups]` of their groups."""

    integers: Tensor
    scales: Tensor
    zeros: Tensor
    factors: Tensor | None = None
    """`[blocks, 2]`, what scales and minima are multiplied with; None for types whose blocks are groups."""


class Form(NamedTuple):
    """How a type's blocks become integers in groups."""

    read: Callable[[Tensor], Groups]
    """Reads blocks `[blocks, bytes]`."""
    group: int
    bits: int
    kind: Kind = "zeros"
    """What `zeros` are: see `GroupedWeight`."""


def decoded(kind: _Kind, blocks: Tensor) -> GroupedWeight:
    """Return rows `[n, bytes]` of a type in `FORMS` as integers in groups."""
    form, (size, num_bytes) = FORMS[kind], GGML_QUANT_SIZES[kind]
    n = len(blocks)
    k = blocks.shape[1] // num_bytes * size
    integers, scales, zeros, factors = form.read(blocks.reshape(-1, num_bytes))
    return GroupedWeight(
        integers.reshape(n, k), scales.reshape(n, -1), zeros.reshape(n, -1), form.group, form.bits,
        minima=form.kind != "zeros", blocks=None if factors is None else factors.reshape(n, -1, 2),
    )  # fmt: skip


def widened(kind: _Kind, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of bytes `[n, bytes]` in a floating type, `[n, k]`."""
    if kind in FLOATS:
        return rows.contiguous().view(FLOATS[kind]).to(dtype)
    with np.errstate(all="ignore"):  # what is no number stays none
        return torch.from_numpy(dequantize(rows.contiguous().numpy(), kind)).to(dtype)


def can_widen(kind: _Kind) -> bool:
    """Whether rows of a type can be widened."""
    try:
        widened(kind, torch.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=torch.uint8, device="cpu"), torch.float32)
    except NotImplementedError:  # as the `gguf` package says it
        return False
    return True


def _halves(block: Tensor, at: int) -> Tensor:
    """Return the float16 at a place of each block, `[blocks, 1]` in float32."""
    return block[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, run: int = 16) -> Tensor:
    """Return the lower halves of each `run` bytes, then the upper ones."""
    packed = packed.reshape(len(packed), -1, 1, run)
    return torch.cat([packed & 15, packed >> 4], 2).flatten(1)


def _bits(packed: Tensor, run: int, width: int = 1) -> Tensor:
    """Return some bits of each `run` bytes: the lowest of all of them, then the next."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)[:, None]
    return (packed.reshape(len(packed), -1, 1, run) >> shifts & (1 << width) - 1).flatten(1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Return the bits of four bytes, the lowest first, `[blocks, 32]`."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed[:, :, None] >> shifts & 1).flatten(1)


def _with_zero(integers: Tensor, scales: Tensor, zero: int) -> Groups:
    return Groups(integers, scales, torch.full_like(scales, zero))


def _q4_0(block: Tensor) -> Groups:
    return _with_zero(_nibbles(block[:, 2:]), _halves(block, 0), 8)


def _q4_1(block: Tensor) -> Groups:
    return Groups(_nibbles(block[:, 4:]), _halves(block, 0), -_halves(block, 2))


def _q5_0(block: Tensor) -> Groups:
    return _with_zero(_nibbles(block[:, 6:]) | _fifth_bits(block[:, 2:6]) << 4, _halves(block, 0), 16)


def _q5_1(block: Tensor) -> Groups:
    return Groups(_nibbles(block[:, 8:]) | _fifth_bits(block[:, 4:8]) << 4, _halves(block, 0), -_halves(block, 2))


def _q8_0(block: Tensor) -> Groups:
    return _with_zero(block[:, 2:] ^ 128, _halves(block, 0), 128)  # signed integers, from 0 on


def _q2_k(block: Tensor) -> Groups:
    scales = block[:, :16]
    factors = torch.cat([_halves(block, 80), _halves(block, 82)], 1)
    return Groups(_bits(block[:, 16:80], 32, 2), (scales & 15).float(), (scales >> 4).float(), factors)


def _q3_k(block: Tensor) -> Groups:
    low, high = block[:, 96:104], block[:, 104:108]
    scales = (torch.cat([low & 15, low >> 4], 1) | _bits(high, 4, 2) << 4).float() - 32
    integers, factor = _bits(block[:, 32:96], 32, 2) | _bits(block[:, :32], 32) << 2, _halves(block, 108)
    return Groups(integers, scales, scales, torch.cat([factor, 4 * factor], 1))


def _q4_k(block: Tensor) -> Groups:
    return Groups(_nibbles(block[:, 16:], 32), *_scales_of_k(block))


def _q5_k(block: Tensor) -> Groups:
    return Groups(_nibbles(block[:, 48:], 32) | _bits(block[:, 16:48], 32) << 4, *_scales_of_k(block))


def _q6_k(block: Tensor) -> Groups:
    low, high = _nibbles(block[:, :128], 64), _bits(block[:, 128:192], 32, 2)
    scale = _halves(block, 208) * block[:, 192:208].contiguous().view(torch.int8)
    return Groups(low | high << 4, scale, 32 * scale)


def _scales_of_k(block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scales and minima `[blocks, 8]` of 6 bits, and the block's factors."""
    first, second, rest = (block[:, 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scales = torch.cat([first & 63, rest & 15 | first >> 2 & 48], 1)
    minima = torch.cat([second & 63, rest >> 4 | second >> 2 & 48], 1)
    return scales.float(), minima.float(), torch.cat([_halves(block, 0), _halves(block, 2)], 1)


FORMS: Mapping[_Kind, Form] = {
    _Kind.Q4_0: Form(_q4_0, 32, 4),
    _Kind.Q4_1: Form(_q4_1, 32, 4, "minima"),
    _Kind.Q5_0: Form(_q5_0, 32, 8),
    _Kind.Q5_1: Form(_q5_1, 32, 8, "minima"),
    _Kind.Q8_0: Form(_q8_0, 32, 8),
    _Kind.Q2_K: Form(_q2_k, 16, 4, "blocks"),
    _Kind.Q3_K: Form(_q3_k, 16, 4, "blocks"),
    _Kind.Q4_K: Form(_q4_k, 32, 4, "blocks"),
    _Kind.Q5_K: Form(_q5_k, 32, 8, "blocks"),
    _Kind.Q6_K: Form(_q6_k, 16, 8, "minima"),  # of so many factors beside so many bits, bytes cost more than they save
}
"""Types whose numbers the kernels have exactly."""
