"""How compressed-tensors (`pack-quantized`) has weights of 4 and 8 bits, and what it states of them.

Knows neither files nor models. `corellm_quantization.published` reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from corellm_kernels.int8_linear import round_rows
from corellm_quantization.rounding import grid_of_files, round_groups


class Size(NamedTuple):
    """A tensor without values."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """Weights of 4 bits: so many inputs of an output share a scale, of the weight's own type, and maybe a zero."""

    group: int
    zeros: bool = False
    bits = 4

    def fits(self, k: int) -> bool:
        """Whether so many inputs can be written: readers take whole groups alone."""
        return k % self.group == 0

    def sizes(self, weight: Size) -> Mapping[str, Size]:
        """Return what a weight `[n, k]` becomes, by the names beside its layer's."""
        n, k = weight.shape
        sizes = {
            "weight_packed": Size(torch.int32, (n, -(-k // 8))),
            "weight_scale": Size(weight.dtype, (n, k // self.group)),
            "weight_shape": Size(torch.int64, (2,)),
        }
        return sizes | ({"weight_zero_point": Size(torch.int32, (-(-n // 8), k // self.group))} if self.zeros else {})

    def rounded(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Return the tensors of a weight `[n, k]`."""
        made = round_groups(weight, self.group, grid_of_files(weight.dtype, symmetric=not self.zeros))
        tensors = {
            "weight_packed": _packed(made.integers, self.bits),
            "weight_scale": made.scales.to(weight.dtype),
            "weight_shape": torch.tensor(weight.shape),
        }
        zeros = _packed(made.zeros.to(torch.uint8).T, self.bits).T
        return tensors | ({"weight_zero_point": zeros} if self.zeros else {})

    def stated(self) -> Mapping[str, Any]:
        """Return what the configuration says of such weights."""
        return _stated(self.bits, symmetric=not self.zeros, strategy="group", group_size=self.group)


@dataclass(frozen=True)
class Rows:
    """Weights of 8 bits, as `quantization="int8"` rounds them: an output's share a scale of 32 bits."""

    bits = 8

    def fits(self, k: int) -> bool:
        """Whether so many inputs can be written: all can."""
        return k > 0

    def sizes(self, weight: Size) -> Mapping[str, Size]:
        """Return what a weight `[n, k]` becomes, by the names beside its layer's."""
        n, k = weight.shape
        return {
            "weight_packed": Size(torch.int32, (n, -(-k // 4))),
            "weight_scale": Size(torch.float32, (n, 1)),
            "weight_shape": Size(torch.int64, (2,)),
        }

    def rounded(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Return the tensors of a weight `[n, k]`."""
        integers, factors = round_rows(weight)
        return {
            "weight_packed": _packed((integers.to(torch.int16) + 128).to(torch.uint8), self.bits),
            "weight_scale": factors[:, None],
            "weight_shape": torch.tensor(weight.shape),
        }

    def stated(self) -> Mapping[str, Any]:
        """Return what the configuration says of such weights."""
        return _stated(self.bits, symmetric=True, strategy="channel", group_size=None)


Layout = Groups | Rows


def quantization_config(layers: Mapping[str, Layout], others: list[str]) -> Mapping[str, Any]:
    """Return the `quantization_config` of a checkpoint.

    Args:
        layers: how each layer is written, by the names that transformers has for them.
        others: linear layers that are not.
    """
    named: dict[Layout, list[str]] = {}
    for name, layout in layers.items():
        named.setdefault(layout, []).append(name)
    most = max(named, key=lambda layout: len(named[layout]))
    groups = [*((layout, names) for layout, names in named.items() if layout != most), (most, ["Linear"])]
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": others,
        "config_groups": {
            f"group_{number}": {
                "targets": targets, "weights": layout.stated(), "input_activations": None, "output_activations": None,
            }
            for number, (layout, targets) in enumerate(groups)
        },
    }  # fmt: skip


def _stated(bits: int, **others: Any) -> Mapping[str, Any]:
    fixed = {"type": "int", "dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax"}
    return {"num_bits": bits, **others, **fixed}


def _packed(integers: Tensor, bits: int) -> Tensor:
    """Return unsigned integers `[rows, columns]` in words of 32 bits, the first of each in its lowest bits."""
    whole = functional.pad(integers, (0, -integers.shape[1] % (32 // bits)))
    if bits == 4:
        whole = whole[:, ::2] | whole[:, 1::2] << 4
    return whole.flatten().view(torch.int32).view(len(integers), -1)
