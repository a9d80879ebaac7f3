"""Packed weights that were kept are taken where they are of the same weights, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from corellm.system.kept_tensors import KeptTensors
from corellm_kernels.cpu import packed_weights
from corellm_kernels.cpu.packed_weights import PackedWeights
from corellm_kernels.cpu.packing import Packed, pack

KINDS = [(dtype, quantize) for dtype in (torch.float32, torch.bfloat16) for quantize in (False, True)]


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

    def noting(weights: list[Tensor], **how: object) -> Packed:
        rows.append(sum(map(len, weights)))
        return pack(weights, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_weights, "pack", noting)
    return rows


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_a_second_start_packs_one_panel(
    tmp_path: Path, packed_rows: list[int], dtype: torch.dtype, quantize: bool
) -> None:
    want = pack(weights(dtype), quantize=quantize)
    for rows, is_new in (([70], True), ([16], False)):
        packed_rows.clear()
        packed = PackedWeights(kept(tmp_path))
        assert equal(packed.packed("layer", weights(dtype), quantize=quantize), want)
        assert packed_rows == rows
        assert packed._is_new == is_new
        packed.keep()


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_other_weights_of_that_name_are_packed(tmp_path: Path, dtype: torch.dtype, quantize: bool) -> None:
    packed = PackedWeights(kept(tmp_path))
    packed.packed("layer", weights(dtype), quantize=quantize)
    packed.keep()
    others = {
        "numbers": (weights(dtype, 1), quantize), "rounding": (weights(dtype), not quantize),
        "rows": ([weights(dtype)[0]], quantize), "depth": ([x[:, :39] for x in weights(dtype)], quantize),
        "type": (weights(torch.bfloat16 if dtype == torch.float32 else torch.float32, 1), quantize),
    }  # fmt: skip
    for name, (given, rounds) in others.items():
        again = PackedWeights(kept(tmp_path))
        assert equal(again.packed("layer", given, quantize=rounds), pack(given, quantize=rounds)), name
        assert again._is_new
    again.keep()
    assert not PackedWeights(kept(tmp_path))._is_new
    third = PackedWeights(kept(tmp_path))
    third.packed("layer", given, quantize=rounds)
    assert not third._is_new
