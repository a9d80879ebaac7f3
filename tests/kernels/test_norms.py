"""The norms' kernels give what their torch twins give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm_kernels.gpu.norms import layer_norm, layer_norm_reference, rms_norm, rms_norm_reference
from tests.kernels.comparing import DEVICE, DTYPES, assert_same

SHAPES = st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([1, 5, 64, 80, 96, 200]))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(shape=SHAPES, with_residual=st.booleans(), with_bias=st.booleans(), seed=st.integers(0, 99))
def test_norms(dtype: torch.dtype, shape: tuple[int, ...], with_residual: bool, with_bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 3).to(DEVICE, dtype)

    x, weight, bias = draw(*shape), draw(shape[-1]), draw(shape[-1]) if with_bias else None
    added = draw(*shape) if with_residual else None
    pairs: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
        (rms_norm, rms_norm_reference, (x, weight, 1e-5)),
        (layer_norm, layer_norm_reference, (x, weight, bias, 1e-5)),
    ]
    for kernel, reference, arguments in pairs:
        residuals = [None if added is None else added.clone() for _ in range(2)]
        ours = kernel(*arguments, residual=residuals[0])
        theirs = reference(*arguments, residual=residuals[1])
        assert_same(ours, theirs, dtype)
        if added is not None:
            assert_same(residuals[0], residuals[1], dtype)


def test_weights_of_a_wider_type_widen_the_result() -> None:
    x, weight = torch.randn(2, 8).half().to(DEVICE), torch.randn(8).to(DEVICE)
    ours, theirs = rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)
    assert ours.dtype == torch.float32
    assert_same(ours, theirs, torch.float16)
