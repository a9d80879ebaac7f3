"""Products with weights in groups equal exact ones, and a row's result does not depend on the rows beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corellm_kernels.cpu.linear import PackedLinear, add_product, joined, pack_linears
from corellm_kernels.fusion.layer_swap import concatenated
from corellm_kernels.grouped_linear import (
    BLOCK,
    GROUPS,
    EncodedWeight,
    GroupedLinear,
    GroupedWeight,
    Kind,
    ToGroups,
    joined_groups,
    rounded_scales,
)
from tests.kernels.cpu.test_linear import (
    DTYPES,
    assert_rows_are_alone,
    assert_threads_change_nothing,
    layer,
    rows,
)

BITS = (4, 8)
KINDS = [(dtype, bits, kind) for dtype in DTYPES for bits in BITS for kind in get_args(Kind)]


def grouped(
    n: int, k: int, dtype: torch.dtype, *, bits: int = 4, kind: Kind = "zeros", group: int = 64, bias: bool = True,
    ordered: bool = True,
) -> GroupedLinear:  # fmt: skip
    """A layer of random integers, scales, and zeros or minima; with blocks, of as many inputs as fill them."""
    k = -(-k // BLOCK) * BLOCK if kind == "blocks" else k
    generator = torch.Generator().manual_seed(n * 1000 + k)
    integers = torch.randint(2**bits, (n, k), generator=generator, dtype=torch.uint8)
    shape = (n, -(-k // group))
    scales, blocks = torch.randn(shape, generator=generator) * 2.0**-bits, None
    if kind == "minima":
        zeros = torch.randn(shape, generator=generator)
    elif kind == "blocks":
        scales, zeros = (torch.randint(-128, 128, shape, generator=generator).float() for _ in range(2))
        blocks = torch.randn(n, k // BLOCK, 2, generator=generator) * torch.tensor([2.0**-bits, 1.0]) / 128
    else:
        scales, steps = rounded_scales(scales), torch.randint(256, shape, generator=generator)
        zeros = steps / 8 if bits == 4 else steps.float()
    order = None if ordered else torch.randperm(k, generator=generator)
    given_bias = torch.randn(n, generator=generator).to(dtype) if bias else None
    weight = GroupedWeight(integers, scales, zeros, group, bits, order, kind != "zeros", blocks)
    return GroupedLinear(weight if blocks is None else as_bytes(weight), given_bias, dtype)


def as_bytes(weight: GroupedWeight) -> EncodedWeight:
    """A weight whose rows are bytes: all that they have, one after another."""
    parts = [
        weight.integers,
        weight.scales,
        weight.zeros,
        *([] if weight.blocks is None else [weight.blocks.flatten(1)]),
    ]
    data = [part.contiguous().view(torch.uint8) for part in parts]

    def decode(rows: Tensor) -> GroupedWeight:
        integers, *factors = rows.split([part.shape[1] for part in data], 1)
        scales, zeros, *blocks = (factor.contiguous().view(torch.float32) for factor in factors)
        of_blocks = blocks[0].view(len(rows), -1, 2) if blocks else None
        return replace(weight, integers=integers, scales=scales, zeros=zeros, blocks=of_blocks)

    return EncodedWeight([torch.cat(data, 1)], decode)


def of_groups(weight: GroupedWeight) -> tuple[Tensor, Tensor]:
    """Scales and zeros as floats, times what their blocks have."""
    if weight.blocks is None:
        return weight.scales, weight.zeros
    factors = weight.blocks.repeat_interleave(BLOCK // weight.group, 1)
    return weight.scales * factors[..., 0], weight.zeros * factors[..., 1]


def assert_exact(ours: Tensor, x: Tensor, linear: GroupedLinear, residual: Tensor | None = None) -> None:
    """The product in float64, but for inputs of 15 bits, sums in float32 and one rounding of the result."""
    weight, inputs = linear.grouped_weight().widened().double(), x.double()
    step = inputs.abs().amax(1, keepdim=True) / (2**15 - 1)
    largest = linear.grouped_weight()
    scales, zeros = of_groups(largest)
    spread = scales.abs().amax(1) * 256  # an integer and a zero are summed apart
    if linear.kind != "zeros":
        spread += zeros.abs().amax(1)
    terms = [inputs @ weight.T, step / 2 * weight.abs().sum(1) + 16 * 2.0**-24 * inputs.abs().sum(1)[:, None] * spread]
    for added in (linear.bias, residual):
        if added is not None:
            terms = [terms[0] + added.double(), terms[1] + 2.0**-22 * added.double().abs()]
    exact, error = terms
    assert ((ours.double() - exact).abs() <= error + 1.01 * DTYPES[ours.dtype] * exact.abs()).all()


@pytest.mark.parametrize(("dtype", "bits", "kind"), KINDS)
@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 45), n=st.integers(1, 150), k=st.integers(1, 600), group=st.sampled_from(GROUPS),
    bias=st.booleans(), ordered=st.booleans(),
)  # fmt: skip
@example(m=1, n=16, k=1, group=32, bias=False, ordered=True)
@example(m=37, n=129, k=257, group=128, bias=True, ordered=False)
@example(m=70, n=37, k=9000, group=64, bias=True, ordered=True)  # more rows than stay in the second cache
def test_it_equals_the_exact_product(
    dtype: torch.dtype, bits: int, kind: Kind, m: int, n: int, k: int, group: int, bias: bool, ordered: bool
) -> None:
    linear = grouped(n, k, dtype, bits=bits, kind=kind, group=group, bias=bias, ordered=ordered)
    x = rows(m, linear.in_features, dtype)
    assert_exact(PackedLinear(linear)(x), x, linear)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("bits", BITS)
def test_the_layer_in_torch_is_the_same_weight(bits: int, kind: Kind) -> None:
    for k in (1, 37, 128):
        linear = grouped(40, k, torch.float32, bits=bits, kind=kind, group=32, ordered=False)
        eye = torch.eye(linear.in_features)
        wide = nn.functional.linear(eye, linear.grouped_weight().widened(), linear.bias)
        assert torch.equal(linear(eye), wide)
        assert_exact(linear(eye), eye, linear)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_blocks_give_the_bits_that_their_groups_give(bits: int, group: int) -> None:
    linear = grouped(37, 700, torch.float32, bits=bits, kind="blocks", group=group)
    weight, x = linear.grouped_weight(), rows(40, linear.in_features, torch.float32)
    assert weight.blocks is not None
    factors = weight.blocks.half().float()  # of which products with bytes are exact
    blocks = replace(weight, blocks=factors)
    scales, zeros = of_groups(blocks)
    wide = replace(weight, scales=scales, zeros=zeros, blocks=None)
    assert torch.equal(blocks.widened(), wide.widened())
    packed = [PackedLinear(GroupedLinear(one, None, torch.float32)) for one in (as_bytes(blocks), wide)]
    for count in (1, 5, 40):
        assert torch.equal(packed[0](x[:count]), packed[1](x[:count]))


def test_scales_of_16_bits_are_exact_and_others_nearly() -> None:
    scales = torch.randn(1000) * torch.logspace(-9, 3, 1000)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(rounded_scales(scales.to(dtype)), scales.to(dtype).float())
    kept = rounded_scales(scales)
    assert not torch.equal(kept, scales)
    assert ((kept - scales).abs() <= 2.0**-16 * scales.abs()).all()
    assert rounded_scales(torch.tensor([torch.nan])).isnan().all()


@pytest.mark.parametrize(("dtype", "bits", "kind"), KINDS)
@pytest.mark.parametrize(("n", "k", "group"), [(64, 700, 32), (100, 33, 64), (37, 3000, 128), (40, 270, 16)])
def test_a_row_is_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, bits: int, kind: Kind, n: int, k: int, group: int
) -> None:
    assert_rows_are_alone(PackedLinear(grouped(n, k, dtype, bits=bits, kind=kind, group=group)))


@pytest.mark.parametrize(("dtype", "bits", "kind"), KINDS)
def test_threads_change_nothing(dtype: torch.dtype, bits: int, kind: Kind) -> None:
    assert_threads_change_nothing(PackedLinear(grouped(333, 512, dtype, bits=bits, kind=kind)))


@pytest.mark.parametrize("minima", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_largest_integers_do_not_overflow(bits: int, minima: bool) -> None:
    shape = (64, 512)
    integers = torch.full(shape, 2**bits - 1, dtype=torch.uint8)
    weight = GroupedWeight(integers, torch.ones(64, 4), torch.zeros(64, 4), 128, bits, minima=minima)
    output = PackedLinear(GroupedLinear(weight, None, torch.float32))(torch.full((7, 512), -3.0))
    torch.testing.assert_close(output, torch.full((7, 64), -3.0 * 512 * (2**bits - 1)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_no_numbers_stay_in_their_row(bad: float) -> None:
    x, packed = rows(7, 37, torch.float32), PackedLinear(grouped(70, 37, torch.float32))
    alone = packed(x)
    x[2, 36], x[5, 0] = bad, bad
    output = packed(x)
    assert output[[2, 5]].isnan().all()
    assert torch.equal(output[[0, 1, 3, 4, 6]], alone[[0, 1, 3, 4, 6]])


@pytest.mark.parametrize(("dtype", "bits", "kind"), KINDS)
def test_products_are_added_to_a_residual_and_inputs_may_be_views(dtype: torch.dtype, bits: int, kind: Kind) -> None:
    linear = grouped(70, 90, dtype, bits=bits, kind=kind)
    k = linear.in_features
    wide, residual = rows(8, 2 * k, dtype), rows(8, 70, dtype)
    total = residual.clone()
    add_product(total, wide[:, k:], PackedLinear(linear))
    assert_exact(total, wide[:, k:], linear, residual)
    assert PackedLinear(linear)(wide[:0, :k]).shape == (0, 70)


def test_weights_are_rounded_some_rows_at_a_time_joined_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the bits of whole weights', and no more rows were in memory than are packed at once."""
    heights: list[int] = []

    def rounded(weight: Tensor) -> GroupedWeight:
        heights.append(len(weight))
        scales = rounded_scales(weight.abs().amax(1, keepdim=True) / 7)
        integers = (weight / scales + 8).round().clamp(0, 15).to(torch.uint8)
        return GroupedWeight(integers, scales, torch.full_like(scales, 8), 64, 4)

    to_groups, parts = ToGroups(rounded, 64, 4), [layer(n, 50, torch.float32, seed=n) for n in (40, 7, 100)]
    whole = to_groups(concatenated(parts))
    heights.clear()
    monkeypatch.setattr("corellm_kernels.cpu.packing._WEIGHTS_AT_ONCE", 50 * 40)
    model, x = nn.Sequential(joined(parts)), rows(3, 50, torch.float32)
    assert pack_linears(model, lambda linear: to_groups) == {4: 1}
    assert heights == [32, 32, 32, 32, 19]
    assert torch.equal(model[0](x), PackedLinear(whole)(x))


def test_layers_in_groups_are_packed() -> None:
    model = nn.Sequential(grouped(40, 64, torch.bfloat16), nn.Linear(40, 8))
    x = rows(3, 64, torch.bfloat16)
    want = model[0](x).float()
    assert pack_linears(model) == {4: 1, None: 1}
    torch.testing.assert_close(model[0](x).float(), want, rtol=2e-2, atol=2e-2 * want.abs().max().item())


def test_rows_of_an_encoded_weight_are_decoded_as_they_are_packed_joined_ones_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The result has the bits of whole weights', and no more rows were decoded than are packed at once."""
    wholes = [grouped(n, 64, torch.float32, kind="minima", group=32, bias=False) for n in (40, 7, 100)]
    heights: list[int] = []

    def decode(blocks: Tensor) -> GroupedWeight:
        heights.append(len(blocks))
        integers, scales, zeros = blocks[:, :64], blocks[:, 64:72].clone(), blocks[:, 72:].clone()
        return GroupedWeight(integers, scales.view(torch.float32), zeros.view(torch.float32), 32, 4, minima=True)

    def encoded(linear: GroupedLinear) -> GroupedLinear:
        weight = linear.grouped_weight()
        parts = [
            weight.integers,
            weight.scales.contiguous().view(torch.uint8),
            weight.zeros.contiguous().view(torch.uint8),
        ]
        return GroupedLinear(EncodedWeight([torch.cat(parts, 1)], decode), None, torch.float32)

    x = rows(3, 64, torch.float32)
    layers = [encoded(whole) for whole in wholes]
    assert torch.equal(layers[0](x), wholes[0](x))
    whole = joined_groups(layers)
    assert whole is not None
    heights.clear()
    monkeypatch.setattr("corellm_kernels.cpu.packing._WEIGHTS_AT_ONCE", 64 * 48)
    packed = PackedLinear(whole)(x)
    assert heights == [48, 48, 48, 3]
    together = joined_groups(wholes)
    assert together is not None
    assert torch.equal(packed, PackedLinear(together)(x))
    assert joined_groups([layers[0], wholes[1]]) is None
