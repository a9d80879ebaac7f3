"""Packed weights that were kept are taken where they are of the same weights, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corellm_kernels.cpu import packed_weights
from corellm_kernels.cpu.kept_tensors import KeptTensors
from corellm_kernels.cpu.packed_weights import PackedWeights
from corellm_kernels.cpu.packing import Packed, Rounding, Unpacked, pack, unpacked, unpacked_groups
from corellm_kernels.grouped_linear import GroupedLinear, GroupedWeight, ToGroups, rounded_scales
from corellm_kernels.int8_linear import Int8Linear


def to_groups(weight: Tensor) -> GroupedWeight:
    """Integers and scales, without care."""
    scales = rounded_scales(weight.float().abs().amax(1, keepdim=True) / 7).expand(-1, 2)
    integers = (weight / scales[:, :1] + 8).round().clamp(0, 15).to(torch.uint8)
    return GroupedWeight(integers, scales, torch.full_like(scales, 8), 32, 4)


TO_GROUPS = ToGroups(to_groups, 32, 4)
KINDS = [(dtype, rounding) for dtype in (torch.float32, torch.bfloat16) for rounding in (None, Int8Linear, TO_GROUPS)]


def weights(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """Two, whose rows share a panel."""
    numbers = torch.randn(70, 41, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return [numbers[:37].clone(), numbers[37:].clone()]


def kept(folder: Path) -> KeptTensors:
    return KeptTensors(folder, "key", 1 << 30)


def equal(one: Packed, other: Packed) -> bool:
    same = torch.equal(one.weight, other.weight) and (one.scale is None) == (other.scale is None)
    return same and (one.scale is None or other.scale is None or torch.equal(one.scale, other.scale))


@pytest.fixture
def packed_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that are packed."""
    rows: list[int] = []

    def noting(weight: Unpacked, *memory: Any) -> Packed:
        rows.append(weight.n)
        return pack(weight, *memory)

    monkeypatch.setattr(packed_weights, "pack", noting)
    return rows


@pytest.mark.parametrize(("dtype", "rounding"), KINDS)
def test_a_second_start_packs_one_panel(
    tmp_path: Path, packed_rows: list[int], dtype: torch.dtype, rounding: Rounding | None
) -> None:
    want = pack(unpacked(weights(dtype), rounding))
    for rows, is_new in (([70], True), ([16], False)):
        packed_rows.clear()
        packed = PackedWeights(kept(tmp_path))
        assert equal(packed.packed("layer", unpacked(weights(dtype), rounding)), want)
        assert packed_rows == rows
        assert packed._is_new == is_new
        packed.keep()


@pytest.mark.parametrize(("dtype", "rounding"), KINDS)
def test_other_weights_of_that_name_are_packed(tmp_path: Path, dtype: torch.dtype, rounding: Rounding | None) -> None:
    packed = PackedWeights(kept(tmp_path))
    packed.packed("layer", unpacked(weights(dtype), rounding))
    packed.keep()
    others = {
        "numbers": (weights(dtype, 1), rounding), "rows": ([weights(dtype)[0]], rounding),
        "depth": ([x[:, :39] for x in weights(dtype)], rounding),
        "type": (weights(torch.bfloat16 if dtype == torch.float32 else torch.float32, 1), rounding),
        **{f"rounding by {other}": (weights(dtype), other) for _, other in KINDS if other is not rounding},
    }  # fmt: skip
    for name, (given, rounds) in others.items():
        again = PackedWeights(kept(tmp_path))
        assert equal(again.packed("layer", unpacked(given, rounds)), pack(unpacked(given, rounds))), name
        assert again._is_new
    again.keep()
    assert not PackedWeights(kept(tmp_path))._is_new
    third = PackedWeights(kept(tmp_path))
    third.packed("layer", unpacked(given, rounds))
    assert not third._is_new


def test_weights_that_are_in_groups_are_kept(tmp_path: Path, packed_rows: list[int]) -> None:
    """Weights of a layer in groups have the bits of weights that are rounded when they are packed."""
    one, other = (
        GroupedLinear(to_groups(torch.cat(weights(torch.float32, seed))), None, torch.float32) for seed in (0, 1)
    )
    want = pack(unpacked(weights(torch.float32), TO_GROUPS))
    for linear, rows in ((one, [70]), (one, [16]), (other, [16, 70])):
        packed_rows.clear()
        packed = PackedWeights(kept(tmp_path))
        assert equal(packed.packed("layer", unpacked_groups(linear)), want) == (linear is one)
        assert packed_rows == rows
        packed.keep()
