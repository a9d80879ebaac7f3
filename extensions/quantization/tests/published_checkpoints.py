"""Writes checkpoints of published formats: integers and scales of a model's layers, laid out element by element."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns AWQ puts at each place of 32 bits."""


class Widened(Protocol):
    """A weight that was rounded."""

    @property
    def widened(self) -> Tensor:
        """The weight in float32."""


Made = TypeVar("Made", bound=Widened)


@dataclass(frozen=True)
class Rounded:
    """A weight `[n, k]` as integers, scales and zeros of its groups, and which group each input is in."""

    integers: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    @property
    def widened(self) -> Tensor:
        """The weight in float32."""
        return self.scales.float()[:, self.group_of] * (self.integers - self.zeros[:, self.group_of])


def rounded(weight: Tensor, bits: int, group: int, *, symmetric: bool = False, shuffled: bool = False) -> Rounded:
    """Round a weight to the nearest."""
    k = weight.shape[1]
    count = k // group if group > 0 else 1
    group_of = torch.arange(k) // (k // count)
    if shuffled:
        group_of = group_of[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
    groups = [weight.float()[:, group_of == number] for number in range(count)]
    low = torch.stack([values.amin(1).clamp(max=0) for values in groups], 1)
    high = torch.stack([values.amax(1).clamp(min=0) for values in groups], 1)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / (2**bits - 1)).half()
    middle = torch.full_like(scales, 2 ** (bits - 1))
    zeros = middle if symmetric else (-low / scales.float()).round().clamp(1, 2**bits - 1)
    integers = (weight.float() / scales.float()[:, group_of] + zeros[:, group_of]).round().clamp(0, 2**bits - 1)
    return Rounded(integers.int(), scales, zeros.int(), group_of.int())


def _packed(values: Tensor, bits: int, order: tuple[int, ...]) -> Tensor:
    """Pack the columns of `[rows, columns]`: at place i of 32 bits the one that `order` has there."""
    per_word = 32 // bits
    rows = []
    for row in values.tolist():
        words = []
        for start in range(0, len(row), per_word):
            word = sum(row[start + order[place]] << bits * place for place in range(per_word))
            words.append(word - 2**32 if word >= 2**31 else word)
        rows.append(words)
    return torch.tensor(rows, dtype=torch.int32)


def gptq(weight: Rounded, bits: int, *, version: int = 1) -> dict[str, Tensor]:
    """Tensors of GPTQ."""
    plain = tuple(range(32 // bits))
    return {
        "qweight": _packed(weight.integers, bits, plain).T,
        "qzeros": _packed(weight.zeros.T - int(version == 1), bits, plain),
        "scales": weight.scales.T,
        "g_idx": weight.group_of,
    }


def awq(weight: Rounded, bits: int) -> dict[str, Tensor]:
    """Tensors of AWQ, for its "gemm"."""
    return {
        "qweight": _packed(weight.integers.T, bits, AWQ_ORDER),
        "qzeros": _packed(weight.zeros.T, bits, AWQ_ORDER),
        "scales": weight.scales.T,
    }


def compressed(weight: Rounded, bits: int, *, symmetric: bool, shuffled: bool = False) -> dict[str, Tensor]:
    """Tensors of compressed-tensors, packed by its own package."""
    middle = 2 ** (bits - 1)
    tensors = {
        "weight_packed": pack_to_int32((weight.integers - middle).to(torch.int8), bits),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.integers.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_to_int32((weight.zeros - middle).to(torch.int8), bits, packed_dim=0)
    if shuffled:
        tensors["weight_g_idx"] = weight.group_of
    return tensors


def write(
    source: Path, to: Path, is_rounded: Callable[[str], bool], round_weight: Callable[[Tensor], Made],
    layout: Callable[[Made], Mapping[str, Tensor]] | None, stated: Mapping[str, Any] | None, note: str | None = None,
) -> Path:  # fmt: skip
    """Write a checkpoint with some of its layers rounded; without a layout, their values in float32.

    A note is what the file's header has by the name of each weight.
    """
    to.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            (to / file.name).symlink_to(file)
    tensors: dict[str, Tensor] = {}
    notes = {"format": "pt"}
    for name, value in load_file(source / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if not is_rounded(name):
            tensors[name] = value
            continue
        weight = round_weight(value)
        notes |= {} if note is None else {name: note}
        given = {"weight": weight.widened} if layout is None else layout(weight)
        tensors |= {f"{stem}.{last}": tensor.contiguous() for last, tensor in given.items()}
    save_file(tensors, to / "model.safetensors", notes)
    config = json.loads((source / "config.json").read_text())
    if stated is not None:
        config["quantization_config"] = dict(stated)
    (to / "config.json").write_text(json.dumps(config))
    return to
