"""Norms of heads in place give what their torch twin gives, and the twin what RMSNorm of torch gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from corellm_kernels.gpu.head_norms import norm_heads, norm_heads_reference
from tests.kernels.comparing import DEVICE, DTYPES, assert_same


def projected(tokens: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """A projection, its queries, its keys, and a weight for each."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * 3).to(DEVICE, dtype)

    whole = draw(tokens, heads + 2 * kv_heads, size)
    return [whole, whole[:, :heads], whole[:, heads : heads + kv_heads], draw(size), draw(size)]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30)
@given(
    tokens=st.integers(0, 3),
    heads=st.sampled_from([1, 3, 8, 40]),
    kv_heads=st.sampled_from([1, 2, 9]),
    size=st.sampled_from([16, 80, 128]),
    seed=st.integers(0, 99),
)
def test_norms_of_heads(dtype: torch.dtype, tokens: int, heads: int, kv_heads: int, size: int, seed: int) -> None:
    """Values beside queries and keys stay as they are."""
    results = []
    for norm in (norm_heads, norm_heads_reference):
        whole, *arguments = projected(tokens, heads, kv_heads, size, dtype, seed)
        norm(*arguments, 1e-6, 1e-2)
        results.append(whole)
    assert_same(*results, dtype)
    before = projected(tokens, heads, kv_heads, size, dtype, seed)[0]
    assert torch.equal(results[0][:, heads + kv_heads :], before[:, heads + kv_heads :])


def test_the_twin_is_torchs_norm() -> None:
    _, query, key, *weights = projected(2, 3, 2, 16, torch.float32, 0)
    wanted = [functional.rms_norm(x, (16,), weight, 1e-6) for x, weight in zip((query, key), weights, strict=True)]
    norm_heads_reference(query, key, *weights, 1e-6, 1e-6)
    torch.testing.assert_close([query, key], wanted)
