"""Products with inputs of 8 bits equal exact ones, and a row's result does not depend on the rows beside it."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corellm.quantization import round_inputs
from corellm_kernels.cpu.linear import PackedLinear, add_product
from corellm_kernels.grouped_linear import GROUPS, GroupedLinear, GroupedWeight, Kind
from corellm_kernels.int8_inputs import rounded_inputs
from corellm_kernels.int8_linear import Int8Linear
from tests.kernels.cpu.test_grouped_linear import grouped, of_groups
from tests.kernels.cpu.test_linear import DTYPES, assert_rows_are_alone, assert_threads_change_nothing, layer, rows

Weights = tuple[int, Kind] | None
WEIGHTS: list[Weights] = [None, *((bits, kind) for bits in (4, 8) for kind in get_args(Kind))]
"""Whole rows of 8 bits, and groups."""


def layers(
    n: int, k: int, dtype: torch.dtype, weights: Weights, group: int = 64, *, ordered: bool = True
) -> tuple[Int8Linear | GroupedLinear, PackedLinear]:
    """A layer of random weights and a bias in torch's operations, and packed; both round their inputs."""
    if weights is None:
        plain = layer(n, k, dtype)
        linear: Int8Linear | GroupedLinear = Int8Linear(plain)
        packed = PackedLinear(plain, Int8Linear)
    else:
        linear = grouped(n, k, dtype, bits=weights[0], kind=weights[1], group=group, ordered=ordered)
        packed = PackedLinear(linear)
    assert round_inputs(nn.ModuleList([linear, packed])) == 2
    return linear, packed


def assert_exact(ours: Tensor, x: Tensor, linear: Int8Linear | GroupedLinear, residual: Tensor | None = None) -> None:
    """The product of rounded inputs in float64, but for sums in float32 and one rounding of the result."""
    if isinstance(linear, Int8Linear):
        weight, inputs = linear.rounded.double() * linear.factors[:, None].double(), rounded_inputs(x.float())
        spread = weight.abs().amax(1)
    else:
        whole, order = linear.grouped_weight(), linear.order
        weight, ordered = whole.widened().double(), x.float() if order is None else x.float()[:, order]
        inputs = rounded_inputs(ordered, linear.group)
        inputs = inputs if order is None else inputs[:, order.argsort()]
        scales, zeros = of_groups(whole)
        spread = scales.abs().amax(1) * 256 + (zeros.abs().amax(1) if linear.kind != "zeros" else 0)
    exact = inputs.double() @ weight.T
    error = 16 * 2.0**-24 * inputs.double().abs().sum(1)[:, None] * spread
    for added in (linear.bias, residual):
        if added is not None:
            exact, error = exact + added.double(), error + 2.0**-22 * added.double().abs()
    assert ((ours.double() - exact).abs() <= error + 1.01 * DTYPES[ours.dtype] * exact.abs()).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 45), n=st.integers(1, 150), k=st.integers(1, 600), group=st.sampled_from(GROUPS),
    ordered=st.booleans(),
)  # fmt: skip
@example(m=1, n=16, k=1, group=32, ordered=True)
@example(m=37, n=129, k=257, group=128, ordered=False)
@example(m=13, n=40, k=131, group=16, ordered=True)  # a part of a panel, four depths of which two are there
@example(m=70, n=37, k=9000, group=64, ordered=True)  # more rows than stay in the second cache
def test_it_equals_the_exact_product(
    dtype: torch.dtype, weights: Weights, m: int, n: int, k: int, group: int, ordered: bool
) -> None:
    linear, packed = layers(n, k, dtype, weights, group, ordered=ordered)
    x = rows(m, linear.in_features, dtype)
    assert_exact(packed(x), x, linear)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_layers_in_torch_round_the_same_inputs(weights: Weights) -> None:
    linear, packed = layers(70, 90, torch.float32, weights, 32, ordered=False)
    x = rows(5, linear.in_features, torch.float32)
    assert_exact(linear(x), x, linear)
    assert_exact(linear(x[None])[0], x, linear)
    assert_exact(packed(x[None])[0], x, linear)


@settings(max_examples=50, deadline=None)
@given(k=st.integers(1, 300), group=st.sampled_from((0, *GROUPS)), size=st.floats(1e-4, 1e3), seed=st.integers(0, 99))
def test_inputs_are_rounded_to_the_nearest_in_steps_of_their_group(k: int, group: int, size: float, seed: int) -> None:
    x = torch.randn(2, 3, k, generator=torch.Generator().manual_seed(seed)) * size
    found = rounded_inputs(x, group)
    assert found.shape == x.shape
    for ours, given_values in zip(found.split(group or 128, -1), x.split(group or 128, -1), strict=True):
        step = given_values.abs().amax(-1, keepdim=True) / 127
        assert ((ours - given_values).abs() <= step * 0.5001).all()
        assert ((ours / step - (ours / step).round()).abs() < 1e-4).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize(("n", "k", "group"), [(100, 33, 64), (37, 3000, 128), (40, 270, 16)])
def test_a_row_is_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, weights: Weights, n: int, k: int, group: int
) -> None:
    assert_rows_are_alone(layers(n, k, dtype, weights, group)[1])


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_threads_change_nothing(weights: Weights) -> None:
    assert_threads_change_nothing(layers(333, 512, torch.float32, weights)[1])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_largest_integers_do_not_overflow(bits: int, group: int) -> None:
    integers = torch.full((64, 512), 2**bits - 1, dtype=torch.uint8)
    weight = GroupedWeight(integers, torch.ones(64, 512 // group), torch.zeros(64, 512 // group), group, bits)
    packed = PackedLinear(GroupedLinear(weight, None, torch.float32))
    assert packed.round_inputs()
    for m in (1, 40):
        output = packed(torch.full((m, 512), -3.0))
        torch.testing.assert_close(output, torch.full((m, 64), -3.0 * 512 * (2**bits - 1)))


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_weights_of_whole_rows_do_not_overflow(sign: int) -> None:
    plain = nn.Linear(1000, 64, bias=False).requires_grad_(False)
    plain.weight[:] = sign
    packed = PackedLinear(plain, Int8Linear)
    assert packed.round_inputs()
    for m in (1, 40):
        torch.testing.assert_close(packed(torch.full((m, 1000), -3.0)), torch.full((m, 64), -3000.0 * sign))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("weights", WEIGHTS[:3], ids=str)
def test_inputs_that_are_no_numbers_stay_in_their_row(weights: Weights, bad: float) -> None:
    linear, packed = layers(70, 200, torch.float32, weights)
    x = rows(7, 200, torch.float32)
    alone = packed(x)
    x[2, 199], x[5, 0] = bad, bad
    output = packed(x)
    assert output[[2, 5]].isnan().all()
    assert torch.equal(output[[0, 1, 3, 4, 6]], alone[[0, 1, 3, 4, 6]])
    assert torch.equal(output.isnan(), linear(x).isnan())


def test_numbers_whose_sum_is_none_are_rounded() -> None:
    """They are finite, and so is what becomes of them in the kernels and in torch's operations."""
    x = torch.full((2, 128), 3e38)
    torch.testing.assert_close(rounded_inputs(x), x)
    linear, packed = layers(40, 128, torch.float32, None)
    torch.testing.assert_close(packed(x / 1e4), linear(x / 1e4), rtol=1e-3, atol=0)


@pytest.mark.parametrize("weights", WEIGHTS[:3], ids=str)
def test_rows_of_zeros_and_of_tiny_numbers(weights: Weights) -> None:
    linear, packed = layers(70, 200, torch.float32, weights)
    for x in (torch.zeros(3, 200), torch.full((3, 200), 1e-35)):
        assert linear.bias is not None
        torch.testing.assert_close(packed(x), linear.bias.expand(3, 70))


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_products_are_added_to_a_residual_and_inputs_may_be_views(weights: Weights) -> None:
    linear, packed = layers(70, 90, torch.bfloat16, weights)
    k = linear.in_features
    wide, residual = rows(8, 2 * k, torch.bfloat16), rows(8, 70, torch.bfloat16)
    total = residual.clone()
    add_product(total, wide[:, k:], packed)
    assert_exact(total, wide[:, k:], linear, residual)
    assert packed(wide[:0, :k]).shape == (0, 70)


def test_layers_of_floats_round_nothing() -> None:
    plain = layer(40, 64, torch.float32)
    packed, x = PackedLinear(plain), rows(3, 64, torch.float32)
    before = packed(x)
    assert round_inputs(nn.ModuleList([plain, packed])) == 0
    assert torch.equal(packed(x), before)
