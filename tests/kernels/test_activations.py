"""The activations' kernels give what their torch twins give, and the twins what transformers' layers give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.activations import ACT2FN

from corellm_kernels.gpu.activations import (
    gelu,
    gelu_and_mul,
    gelu_and_mul_reference,
    gelu_reference,
    silu_and_mul,
    silu_and_mul_reference,
)
from tests.kernels.comparing import DEVICE, DTYPES, assert_same

SHAPES = st.tuples(st.integers(0, 2), st.integers(1, 2), st.sampled_from([1, 5, 64, 80, 200, 1100]))
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
"""Infinities on the way are right: a GPU computes with them, numpy, which interprets, warns of them."""
APPROXIMATIONS: tuple[Literal["none", "tanh"], ...] = ("none", "tanh")


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 3


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60)
@given(shape=SHAPES, strided=st.booleans(), seed=st.integers(0, 99))
def test_activations(dtype: torch.dtype, shape: tuple[int, ...], strided: bool, seed: int) -> None:
    *rows, width = shape
    x = draw(*rows, 2 * width + (8 if strided else 0), seed=seed).to(DEVICE, dtype)[..., : 2 * width]
    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (silu_and_mul, silu_and_mul_reference)
    ]
    for approximate in APPROXIMATIONS:
        for kernel, reference in ((gelu, gelu_reference), (gelu_and_mul, gelu_and_mul_reference)):
            pairs.append((partial(kernel, approximate=approximate), partial(reference, approximate=approximate)))
    for ours, theirs in pairs:
        assert_same(ours(x), theirs(x), dtype)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_the_function_is_rounded_before_the_product(dtype: torch.dtype) -> None:
    """With one rounding instead of two every fourth product is another."""
    x = draw(4, 1000).to(DEVICE, dtype)
    assert (silu_and_mul(x) == silu_and_mul_reference(x)).float().mean() > 0.9
    assert (gelu_and_mul(x) == gelu_and_mul_reference(x)).float().mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(dtype: torch.dtype) -> None:
    """Large values give what the functions tend to; torch's own GELU makes the largest float32 infinite."""
    largest = torch.finfo(dtype).max
    values = [0.0, largest, -largest, torch.inf, torch.nan, -200.0, 200.0]
    limits = torch.tensor([0.0, largest, 0.0, torch.inf, torch.nan, 0.0, 200.0], device=DEVICE).to(dtype)
    x = torch.tensor([*values, *[1.0] * len(values)], device=DEVICE).to(dtype)
    results = [silu_and_mul(x), *(gelu_and_mul(x, approximate) for approximate in APPROXIMATIONS)]
    for result in results:
        torch.testing.assert_close(result, limits, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_twins_are_transformers_layers(dtype: torch.dtype) -> None:
    gate, up = draw(3, 40, seed=1).to(dtype), draw(3, 40, seed=2).to(dtype)
    both = torch.cat((gate, up), dim=-1)
    assert_same(silu_and_mul_reference(both), ACT2FN["silu"](gate) * up, dtype)
    for name, approximate in zip(("gelu", "gelu_pytorch_tanh"), APPROXIMATIONS, strict=True):
        assert_same(gelu_reference(gate, approximate), ACT2FN[name](gate), dtype)
        assert_same(gelu_and_mul_reference(both, approximate), ACT2FN[name](gate) * up, dtype)
