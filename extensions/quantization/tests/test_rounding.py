"""Rounding to 4 bits in C++ is that in torch, bit for bit, with every instruction set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from corellm_kernels.cpu import library
from corellm_kernels.cpu import rounding as compiled
from corellm_quantization import rounding
from corellm_quantization.rounding import IN_MEMORY, Grid, grid_of_files, round_groups

GRIDS = {
    "in memory": IN_MEMORY,
    "files": grid_of_files(torch.float32, symmetric=False),
    "files, bfloat16": grid_of_files(torch.bfloat16, symmetric=False),
    "files, symmetric": grid_of_files(torch.bfloat16, symmetric=True),
}

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason="no compiled kernels")


def of_torch(weight: Tensor, group: int, grid: Grid) -> rounding.GroupedWeight:
    """As without kernels."""
    return rounding._round_groups(weight, group, grid)


def assert_equal(weight: Tensor, group: int, grid: Grid) -> None:
    """Both ways give the same integers, scales and zeros."""
    one, other = round_groups(weight, group, grid), of_torch(weight, group, grid)
    assert torch.equal(one.integers, other.integers)
    assert torch.equal(one.scales, other.scales)
    assert torch.equal(one.zeros, other.zeros)


@settings(max_examples=60)
@given(
    n=st.integers(1, 20), k=st.integers(1, 300), group=st.sampled_from([16, 32, 64, 128]),
    grid=st.sampled_from(sorted(GRIDS)), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    size=st.sampled_from([1e-41, 1e-30, 1e-3, 1.0, 1e3, 1e29]), shift=st.floats(-2, 2), seed=st.integers(0, 99),
)  # fmt: skip
@example(n=1, k=1, group=64, grid="in memory", dtype=torch.bfloat16, size=1.0, shift=0.0, seed=0)
@example(n=40, k=1000, group=64, grid="in memory", dtype=torch.float32, size=0.02, shift=0.0, seed=0)
def test_compiled_rounding_is_that_of_torch(
    n: int, k: int, group: int, grid: str, dtype: torch.dtype, size: float, shift: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator) + shift
    if dtype != torch.float16:
        weight *= size
    weight[torch.rand(n, k, generator=generator) < 0.1] = 0
    weight[0, : k // 2] = 0
    assert_equal(weight.to(dtype), group, GRIDS[grid])


def test_rows_of_a_larger_matrix_are_rounded_alone() -> None:
    weight = torch.randn(12, 200, generator=torch.Generator().manual_seed(1))
    assert_equal(weight[3:9, 5:190], 32, IN_MEMORY)
    assert_equal(weight.t(), 64, IN_MEMORY)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_no_kernel_should_see_is_rounded_in_torch(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(3, 128, generator=torch.Generator().manual_seed(2))
    assert torch.equal(round_groups(weight, 64).integers, of_torch(weight, 64, IN_MEMORY).integers)
    monkeypatch.delattr(compiled, "round_groups")
    weight[1, 70] = value
    rounded = round_groups(weight, 64)
    assert torch.equal(rounded.integers[[0, 2]], of_torch(weight[[0, 2]], 64, IN_MEMORY).integers)
