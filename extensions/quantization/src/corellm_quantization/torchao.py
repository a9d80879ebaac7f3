"""Weights as torchao saves them in safetensors: tensors of a weight, and a note in the file's header of what they are.

Reads integers of 8 bits and fewer in blocks (`Int8Tensor`, `IntxUnpackedToInt8Tensor`), those of 4 bits in plain order
(`Int4Tensor`) and floats of 8 bits (`Float8Tensor`). Knows neither files nor models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from reprlib import repr as shown  # short, and of values of any depth
from typing import Any

import torch
from torch import Tensor

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GROUPS, ZEROS_PER_INTEGER, GroupedWeight
from corellm_quantization.grouping import INSTEAD, grouped
from corellm_quantization.widened import Block, Tensors, floats_of_8_bits, scaled

_KINDS = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Int4Tensor", "Float8Tensor")
_MOST_ZEROS = {bits: 256 // steps for bits, steps in ZEROS_PER_INTEGER.items()}
_FEWER_BITS = {f"int{bits}": bits for bits in range(1, 9)}


def torchao_layers(note: str) -> Callable[[Tensors], GroupedWeight | Tensor]:
    """Return what reads a layer of which the header has this note.

    Raises:
        CheckpointError: a kind of tensor that cannot be read, or a note that is none.
    """
    try:
        stated = json.loads(note)
        kind, data = stated["_type"], dict(stated["_data"])
        if kind not in _KINDS:
            raise CheckpointError(f"torchao with weights in {shown(kind)}; {', '.join(_KINDS)} can be read: {INSTEAD}")
        block = _block(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"torchao's note of the weight is none of its own: {error!r:.200}") from error
    read: Callable[[Tensors, Block], GroupedWeight | Tensor]
    match kind:
        case "Int4Tensor":
            read = _halves
        case "Float8Tensor":
            read = _floats
        case _:
            read = partial(_integers, bits=_bits(data) if kind == "IntxUnpackedToInt8Tensor" else 8)
    return lambda tensors: _scaled_inputs(read(tensors, block), tensors.get("weight_act_pre_scale"))


def _block(data: Mapping[str, Any]) -> Block:
    """Return how many outputs and inputs share a scale; None for all."""
    match data.get("block_size"):
        case None | []:
            return None, None
        case [int(rows), int(columns)] if min(rows, columns) > 0:
            return rows, columns
    raise ValueError(f"block_size {shown(data.get('block_size'))}")


def _bits(data: Mapping[str, Any]) -> int:
    stated = data.get("target_dtype")
    name = stated.get("_data") if isinstance(stated, Mapping) else None
    if not isinstance(name, str) or name not in _FEWER_BITS:
        raise CheckpointError(f"integers of {shown(name)}; int1 to int8 can be read")
    return 4 if _FEWER_BITS[name] <= 4 else 8


def _integers(tensors: Tensors, block: Block, *, bits: int) -> GroupedWeight | Tensor:
    """Return signed integers, one in each byte: `(integer - zero) * scale`."""
    integers = tensors["weight_qdata"]
    if integers.dtype != torch.int8 or integers.dim() != 2:
        raise CheckpointError(f"weights {tuple(integers.shape)} of {integers.dtype}; rows of int8 can be read")
    scales, zeros = _scales_and_zeros(tensors)
    n, k = integers.shape
    middle = 1 << bits - 1
    if bits == 4 and integers.numel() and (integers.min() < -middle or integers.max() >= middle):
        raise CheckpointError(f"integers from {int(integers.min())} to {int(integers.max())}, expected 4 bits")
    if not _is_row(block, n, k):
        return scaled(integers.float(), scales, block) - scaled(torch.ones(n, k), scales * zeros, block)
    scales, zeros = (x.view(-1, 1).expand(n, 1) if x.numel() == 1 else x.reshape(n, -1) for x in (scales, zeros))
    unsigned = (integers.to(torch.int16) + middle).to(torch.uint8)
    zeros = zeros + middle
    is_whole = bool((zeros == zeros.round()).all() and (zeros >= 0).all() and (zeros < _MOST_ZEROS[bits]).all())
    return grouped(unsigned, scales, zeros if is_whole else scales * zeros, bits, minima=not is_whole)


def _scales_and_zeros(tensors: Tensors) -> tuple[Tensor, Tensor]:
    scales = tensors["weight_scale"].float()
    zeros = tensors.get("weight_zero_point", torch.zeros_like(scales)).float()
    if scales.shape != zeros.shape:
        raise CheckpointError(f"scales {tuple(scales.shape)} and zeros {tuple(zeros.shape)}")
    return scales, zeros


def _is_row(block: Block, n: int, k: int) -> bool:
    """Whether the kernels have such groups: parts of a row, whole rows, or all."""
    rows, columns = block
    if columns in (None, k):
        return rows in (None, 1, n)
    return rows == 1 and columns is not None and k % columns == 0 and columns % GROUPS[0] == 0


def _halves(tensors: Tensors, block: Block) -> GroupedWeight:
    """Return signed integers of 4 bits, two in a byte, the lower first: `integer * scale + zero`, groups first."""
    packed = tensors["weight_qdata"]
    if packed.dtype not in (torch.int8, torch.uint8) or packed.dim() != 2:
        raise CheckpointError(f"weights {tuple(packed.shape)} of {packed.dtype}; rows of bytes can be read")
    n, k = len(packed), 2 * packed.shape[1]
    if not _is_row(block, n, k):
        raise CheckpointError(f"4 bits in blocks of {block}; groups of a row, multiples of {GROUPS[0]}, can be read")
    unsigned = packed.view(torch.uint8) ^ 0x88  # adds 8 to both
    integers = torch.stack([unsigned & 15, unsigned >> 4], 2).flatten(1)
    scales, zeros = (x.T for x in _scales_and_zeros(tensors))
    return grouped(integers, scales, 8 * scales - zeros, 4, minima=True)


def _floats(tensors: Tensors, block: Block) -> Tensor:
    return floats_of_8_bits({"weight": tensors["weight_qdata"], "weight_scale": tensors["weight_scale"]}, block)


def _scaled_inputs(weight: GroupedWeight | Tensor, scale: Tensor | None) -> GroupedWeight | Tensor:
    """Return a weight whose inputs are multiplied first, which only one in floats can have."""
    if scale is None:
        return weight
    return (weight if isinstance(weight, Tensor) else weight.widened()) * scale.float()
