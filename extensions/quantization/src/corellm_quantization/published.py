"""Weights in published formats: what a checkpoint states, and how its tensors are laid out.

GPTQ (versions 1 and 2, with act order), AWQ (gemm) and the integers of compressed-tensors and bitsandbytes, of 4 and 8
bits, become integers in groups; `widened` reads other kinds, `torchao` and `hqq` those formats. Each weight is exactly
what the format says. Inputs that a format would round stay as they are. Knows neither files nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from reprlib import repr as shown  # short, and of values of any depth
from typing import Any

import torch
from torch import Tensor

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GROUPS, GroupedWeight
from corellm_quantization.grouping import INSTEAD, grouped, signed_bytes, unpacked
from corellm_quantization.hqq import hqq_layer
from corellm_quantization.torchao import torchao_layers
from corellm_quantization.widened import Block, Tensors, bitsandbytes_4_bits, floats_of_4_bits, floats_of_8_bits

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ puts the values of eight columns in 32 bits."""

Read = Callable[[Tensors], GroupedWeight | Tensor]


@dataclass(frozen=True)
class Published:
    """A format, as a checkpoint states it."""

    marker: str
    """Name of a tensor that each quantized layer has."""
    read: Read
    """Makes a weight of a layer's tensors: integers in groups, or float32 `[n, k]`.

    Raises a CheckpointError that says what does not fit.
    """
    bits: Sequence[int] = ()
    """Of packed integers that checkpoints of compressed-tensors may have side by side."""
    read_noted: Callable[[str], Read] | None = None
    """Returns what reads a layer in place of `read`, by the note that the header of a file has of its weight.

    Raises a CheckpointError that says what cannot be read.
    """


def published(stated: Mapping[str, Any]) -> Published | None:
    """Return the format of a `quantization_config`; None for methods that are not known here.

    Raises:
        CheckpointError: a variant that cannot be read.
    """
    make = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes}
    make |= {"torchao": _torchao, "hqq": _hqq}
    found = make.get(str(stated.get("quant_method")))
    return None if found is None else found(stated)


def _gptq(stated: Mapping[str, Any]) -> Published:
    bits, group = _bits(stated, stated.get("bits")), _group(stated, stated.get("group_size"))
    later = 0 if stated.get("checkpoint_format") == "gptq_v2" else 1  # version 1 has zeros that are one less

    def read(tensors: Tensors) -> GroupedWeight:
        integers = unpacked(tensors["qweight"], bits, 0).T
        zeros = unpacked(tensors["qzeros"], bits, 1)[:, : integers.shape[0]].T + later
        order = _order(tensors.get("g_idx"), integers.shape[1], group)
        return grouped(integers if order is None else integers[:, order], tensors["scales"].T, zeros, bits, order)

    return Published("qweight", read)


def _awq(stated: Mapping[str, Any]) -> Published:
    bits = _bits(stated, stated.get("bits", stated.get("w_bit")))
    version = stated.get("version", stated.get("format", "gemm"))
    if bits != 4 or not isinstance(version, str) or version.lower() != "gemm":
        raise _refused(stated, f"version {shown(version)} of {bits} bits; AWQ's 'gemm' of 4 bits can be read")
    _group(stated, stated.get("group_size", stated.get("q_group_size")))

    def columns(packed: Tensor) -> Tensor:
        return unpacked(packed, bits, 1).view(len(packed), -1, 8)[:, :, list(_AWQ_PLACES)].flatten(1).T

    def read(tensors: Tensors) -> GroupedWeight:
        scales = tensors["scales"].T
        zeros = columns(tensors["qzeros"]) if "qzeros" in tensors else torch.full_like(scales, 8)
        return grouped(columns(tensors["qweight"]), scales, zeros, bits)

    return Published("qweight", read)


def _compressed(stated: Mapping[str, Any]) -> Published:
    groups = _object(stated, stated, "config_groups")
    schemes = [_object(stated, groups, name) for name in groups]
    if len(schemes) == 1:
        return _scheme(stated, schemes[0])
    found = [_scheme(stated, scheme) for scheme in schemes]
    if not found or not all(one.bits for one in found):
        raise _refused(
            stated, f"{len(schemes)} kinds of layers; one can be read, or several of integers in 'pack-quantized'"
        )
    return _packed(sorted({bits for one in found for bits in one.bits}))


def _scheme(stated: Mapping[str, Any], scheme: Mapping[str, Any]) -> Published:
    """Return the format of one kind of layers; a checkpoint with several may say it for each."""
    weights, form = _object(stated, scheme, "weights"), scheme.get("format") or stated.get("format")
    kind, bits = weights.get("type"), weights.get("num_bits")
    block = _block(stated, weights)
    match form, kind, bits:
        case "pack-quantized", "int", _:
            _group_of(stated, block)
            return _packed([_bits(stated, bits)])
        case "int-quantized" | "naive-quantized", "int", 8:
            _group_of(stated, block)
            return Published("weight_scale", signed_bytes)
        case "float-quantized" | "naive-quantized" | "mxfp8-quantized", "float", 8:
            return Published("weight_scale", partial(floats_of_8_bits, block=block))
        case "nvfp4-pack-quantized" | "mxfp4-pack-quantized", "float", 4:
            return Published("weight_packed", partial(floats_of_4_bits, block=block))
    raise _refused(stated, f"format {shown(form)} of {shown(kind)} weights of {shown(bits)} bits")


def _block(stated: Mapping[str, Any], weights: Mapping[str, Any]) -> Block:
    """Return how many outputs and inputs share a scale; None for all."""
    match weights:
        case {"strategy": "tensor"}:
            return None, None
        case {"strategy": "channel"}:
            return 1, None
        case {"strategy": "group" | "tensor_group", "group_size": int(group)} if group > 0:
            return 1, group
        case {"strategy": "block", "block_structure": [int(rows), int(columns)]} if min(rows, columns) > 0:
            return rows, columns
    said = ", ".join(f"{name} {shown(weights.get(name))}" for name in ("strategy", "group_size", "block_structure"))
    raise _refused(stated, said)


def _group_of(stated: Mapping[str, Any], block: Block) -> int:
    """Return the size of integers' groups, -1 for whole rows."""
    rows, columns = block
    if columns is not None and rows != 1:
        raise _refused(stated, f"integers in blocks of {rows} x {columns}; groups of a row can be read")
    return _group(stated, -1 if columns is None else columns)


def _packed(widths: Sequence[int]) -> Published:
    """Integers of these numbers of bits, signed, but packed without a sign: a layer's tensors tell its own."""

    def read(tensors: Tensors) -> GroupedWeight:
        n, k = (int(size) for size in tensors["weight_shape"])
        packed, scales = tensors["weight_packed"], tensors["weight_scale"]
        bits = next((bits for bits in widths if packed.shape[-1] == -(-k * bits // 32)), None)
        if bits is None:
            raise CheckpointError(f"{tuple(packed.shape)} words of 32 bits for {n} x {k} integers of {widths} bits")
        integers = unpacked(packed, bits, 1)[:n, :k]
        if "weight_zero_point" in tensors:
            zeros = unpacked(tensors["weight_zero_point"], bits, 0)[:n]
        else:
            zeros = torch.full_like(scales, 1 << bits - 1)
        group = -1 if scales.shape[-1] <= 1 else -(-k // scales.shape[-1])
        order = _order(tensors.get("weight_g_idx"), k, group)
        return grouped(integers if order is None else integers[:, order], scales, zeros, bits, order)

    return Published("weight_packed", read, widths)


def _bitsandbytes(stated: Mapping[str, Any]) -> Published:
    if stated.get("load_in_4bit"):
        return Published("weight_quant_state", bitsandbytes_4_bits)
    if stated.get("load_in_8bit"):
        return Published("SCB", lambda given: signed_bytes({**given, "weight_scale": given["SCB"].float() / 127}))
    raise _refused(stated, "neither 'load_in_4bit' nor 'load_in_8bit'")


def _torchao(stated: Mapping[str, Any]) -> Published:
    def read(tensors: Tensors) -> GroupedWeight | Tensor:
        raise CheckpointError("the file's header does not say of which kind its tensors are; download it again")

    return Published("weight_qdata", read, read_noted=torchao_layers)


def _hqq(stated: Mapping[str, Any]) -> Published:
    config = _object(stated, stated, "quant_config")
    if any(isinstance(value, Mapping) and value.get("scale_quant_params") for value in (config, *config.values())):
        raise _refused(stated, "scales that are quantized")
    return Published("W_q", hqq_layer)


def _refused(stated: Mapping[str, Any], found: str) -> CheckpointError:
    return CheckpointError(f"quantization_config: {stated.get('quant_method')} with {found}; {INSTEAD}")


def _object(stated: Mapping[str, Any], part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return what a part of the statement has under a name; nothing where it has none."""
    found = part.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise _refused(stated, f"{name} {shown(found)}; an object is expected")
    return found or {}


def _bits(stated: Mapping[str, Any], bits: Any) -> int:
    if bits not in (4, 8):
        raise _refused(stated, f"weights of {shown(bits)} bits; 4 and 8 can be read")
    return int(bits)


def _group(stated: Mapping[str, Any], group: Any) -> int:
    if type(group) is not int or (group != -1 and (group <= 0 or group % GROUPS[0])):
        raise _refused(
            stated, f"groups of {shown(group)}; multiples of {GROUPS[0]}, and -1 for whole rows, can be read"
        )
    return group


def _order(group_of_input: Tensor | None, k: int, group: int) -> Tensor | None:
    """Return the inputs sorted by their groups; None if they are."""
    if group_of_input is None or group == -1:
        return None
    group_of_input = group_of_input.long()
    in_order = torch.arange(k, device=group_of_input.device) // group
    if torch.equal(group_of_input, in_order):
        return None
    order = group_of_input.argsort(stable=True)
    if len(order) != k or not torch.equal(group_of_input[order], in_order):
        raise CheckpointError(f"the inputs' groups (g_idx) are not {-(-k // group)} of {group} inputs each")
    return order
