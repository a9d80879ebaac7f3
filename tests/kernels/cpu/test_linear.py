"""Packed products equal plain ones, and a row's result does not depend on the rows beside it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from corellm_kernels.cpu.huge_pages import HugePages
from corellm_kernels.cpu.linear import PackedLinear, SideBySide, add_product, joined, pack_linears
from corellm_kernels.fusion.layer_swap import concatenated
from corellm_kernels.int8_linear import Int8Linear, round_rows, to_int8

DTYPES = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""Half the distance of neighbouring numbers around 1."""


def layer(n: int, k: int, dtype: torch.dtype, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    """A linear layer of random weights."""
    generator = torch.Generator().manual_seed(seed)
    made = nn.Linear(k, n, bias=bias, dtype=dtype)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)
    return made.requires_grad_(False)


def packed_layer(linear: nn.Linear, quantize: bool) -> PackedLinear:
    """The layer packed, perhaps with its weight rounded to 8 bits."""
    return PackedLinear(linear, Int8Linear if quantize else None)


KINDS = [(dtype, quantize) for dtype in DTYPES for quantize in (False, True)]
"""Types, and whether weights are rounded to 8 bits."""


def rows(m: int, k: int, dtype: torch.dtype) -> Tensor:
    """Random rows."""
    return torch.randn(m, k, generator=torch.Generator().manual_seed(m * 1000 + k)).to(dtype)


def assert_rows_are_alone(packed: PackedLinear) -> None:
    """Each row's product has the same bits among any number of others, also where it is added to a residual."""
    n, dtype, x = packed.out_features, packed.dtype, rows(70, packed.in_features, packed.dtype)
    alone = torch.cat([packed(row[None]) for row in x])
    added = rows(70, n, dtype)
    for i in range(70):
        packed(x[i : i + 1], added[i : i + 1])
    for m in (2, 3, 5, 6, 7, 12, 13, 18, 19, 25, 37, 40, 70):
        assert torch.equal(packed(x[:m]), alone[:m]), m
        total = rows(70, n, dtype)[:m]
        packed(x[:m], total)
        assert torch.equal(total, added[:m]), m


def assert_threads_change_nothing(packed: PackedLinear) -> None:
    """The product has the same bits with any number of threads."""
    x, before, outputs = rows(9, packed.in_features, packed.dtype), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outputs.append(packed(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def assert_close(
    ours: Tensor, x: Tensor, linear: nn.Linear, residual: Tensor | None = None, *, quantize: bool = False
) -> None:
    """The product in float64, but for sums in float32 and one rounding of the result.

    Rounded weights are multiplied exactly, by inputs in integers as large as sums of 32 bits allow.
    """
    weight = linear.weight.double()
    if quantize:
        rounded, scale = round_rows(linear.weight)
        weight = rounded.double() * scale[:, None].double()
    terms = [x.double() @ weight.T, x.double().abs() @ weight.abs().T]
    if quantize:
        magnitudes = x.double().abs()
        fits = 127 * magnitudes.sum(1, keepdim=True) * 1.0011 / (2**31 - 64 * x.shape[1])
        step = torch.maximum(magnitudes.amax(1, keepdim=True) / (2**15 - 1), fits)
        terms[1] += step / 2 * weight.abs().sum(1) / (8 * 2.0**-24)
    for added in (linear.bias, residual):
        if added is not None:
            terms = [terms[0] + added.double(), terms[1] + added.double().abs()]
    exact, size = terms
    assert ((ours.double() - exact).abs() <= 8 * 2.0**-24 * size + 1.01 * DTYPES[ours.dtype] * exact.abs()).all()


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
@settings(max_examples=60, deadline=None)
@given(m=st.integers(1, 45), n=st.integers(1, 150), k=st.integers(1, 600), bias=st.booleans())
@example(m=1, n=16, k=1, bias=False)
@example(m=37, n=129, k=257, bias=True)  # a part of a panel, a part of the depth, an odd depth
@example(m=2, n=17, k=513, bias=True)
@example(m=3, n=16, k=9000, bias=False)
@example(m=70, n=37, k=9000, bias=True)  # more rows than stay in the second cache
def test_it_equals_the_exact_product(dtype: torch.dtype, quantize: bool, m: int, n: int, k: int, bias: bool) -> None:
    linear, x = layer(n, k, dtype, bias=bias), rows(m, k, dtype)
    assert_close(packed_layer(linear, quantize)(x), x, linear, quantize=quantize)


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_integers_do_not_overflow(dtype: torch.dtype) -> None:
    """Every product is as large as it can be: sums reach the last bit."""
    for k in (16, 2048, 8192, 40_000):
        linear = nn.Linear(k, 64, dtype=dtype, bias=False).requires_grad_(False)
        linear.weight.fill_(1)
        linear.weight[1::2] = -1
        output = PackedLinear(linear, Int8Linear)(torch.full((7, k), -3.0, dtype=dtype))
        wanted = torch.tensor([-3.0 * k, 3.0 * k]).repeat(32).expand(7, 64)
        step = max(1 / (2**15 - 1), 127 * k * 1.001 / (2**31 - 64 * k))  # of the integers, relative to the largest
        torch.testing.assert_close(output.float(), wanted, rtol=step / 2 + 2 * DTYPES[dtype], atol=0)


def test_a_large_input_leaves_the_others_their_bits() -> None:
    """In a wide layer, where a bound for any inputs would leave some hundred steps for all."""
    linear, x = layer(64, 18_944, torch.float32), rows(1, 18_944, torch.float32)
    x[0, 5] = 1000
    rounded, factors = round_rows(linear.weight)
    weight = rounded.double() * factors.double()[:, None]
    error = PackedLinear(linear, Int8Linear)(x) - x.double() @ weight.T - linear.bias
    x[0, 5] = 0
    assert error.norm() < 0.02 * (x.double() @ weight.T).norm()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_that_are_no_numbers_stay_in_their_row(dtype: torch.dtype, bad: float) -> None:
    for k in (8, 37):
        x, packed = rows(7, k, dtype), PackedLinear(layer(70, k, dtype), Int8Linear)
        alone = packed(x)
        x[2, k - 1], x[5, 0] = bad, bad
        output = packed(x)
        assert output[[2, 5]].isnan().all()
        assert torch.equal(output[[0, 1, 3, 4, 6]], alone[[0, 1, 3, 4, 6]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_and_of_tiny_numbers(dtype: torch.dtype) -> None:
    linear = layer(64, 40, dtype)
    packed = PackedLinear(linear, Int8Linear)
    x = torch.stack([torch.zeros(40), torch.full((40,), 1e-38), torch.full((40,), 1e-42)]).to(dtype)
    assert torch.equal(packed(x), linear.bias.expand(3, 64))


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
@pytest.mark.parametrize(("n", "k"), [(64, 700), (100, 33), (176, 1024), (37, 5000)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_is_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, quantize: bool, n: int, k: int, bias: bool
) -> None:
    assert_rows_are_alone(packed_layer(layer(n, k, dtype, bias=bias), quantize))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_torch_makes_of_a_rows_only_output_is_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    """As of the gate of a shared expert: torch computes those that fill a vector in another way than the others."""
    made, x = packed_layer(layer(1, 64, dtype), False), rows(70, 64, dtype)
    alone = torch.cat([torch.sigmoid(made(row[None])) for row in x])
    for count in (2, 7, 16, 37, 70):
        assert torch.equal(torch.sigmoid(made(x[:count])), alone[:count])
    assert torch.equal(made(x.view(2, 35, 64)).view(70, 1), made(x))


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_threads_change_nothing(dtype: torch.dtype, quantize: bool) -> None:
    assert_threads_change_nothing(packed_layer(layer(333, 512, dtype), quantize))


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_inputs_may_be_views(dtype: torch.dtype, quantize: bool) -> None:
    packed, wide = packed_layer(layer(48, 40, dtype), quantize), rows(6, 80, dtype)
    assert torch.equal(packed(wide[:, 40:]), packed(wide[:, 40:].contiguous()))
    assert torch.equal(packed(wide.t()[:40].t()[::2]), packed(wide[::2, :40].contiguous()))
    assert torch.equal(packed(wide[None, :, :40])[0], packed(wide[:, :40].contiguous()))
    assert packed(wide[:0, :40]).shape == (0, 48)


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_products_are_added_to_a_residual(dtype: torch.dtype, quantize: bool) -> None:
    linear, x, residual = layer(70, 90, dtype), rows(8, 90, dtype), rows(8, 70, dtype)
    total = residual.clone()
    add_product(total, x, packed_layer(linear, quantize))
    assert_close(total, x, linear, residual, quantize=quantize)
    total = residual.clone()
    add_product(total, x, linear)  # as layers do that are tried before they are packed
    assert torch.equal(total, residual + linear(x))


def test_wrong_inputs_are_refused() -> None:
    packed = PackedLinear(layer(16, 8, torch.float32))
    with pytest.raises(TypeError, match=r"torch.float32 of width 8, .*torch.bfloat16 .*\(2, 8\)"):
        packed(rows(2, 8, torch.bfloat16))
    with pytest.raises(TypeError, match=r"torch.float32 .*\(2, 9\)"):
        packed(rows(2, 9, torch.float32))
    for residual in (rows(2, 16, torch.bfloat16), rows(1, 16, torch.float32)):  # too short a memory for the sums
        with pytest.raises(TypeError, match=r"expected 2 x 16 of torch.float32 to add to, got .*\([12], 16\)"):
            packed(rows(2, 8, torch.float32), residual)


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 128), (33, 129), (70, 257), (2100, 1001)])
def test_weights_are_packed_in_panels(dtype: torch.dtype, quantize: bool, n: int, k: int) -> None:
    """Weights are packed as a plain permutation packs them, and rounded as in torch, bit for bit."""
    linear = layer(n, k, dtype)
    linear.weight[n // 2] = 0
    packed, group = packed_layer(linear, quantize), 2 if quantize or dtype == torch.bfloat16 else 1
    weight, scale = round_rows(linear.weight) if quantize else (linear.weight, None)
    panels, groups = -(-n // 16), -(-k // group)
    padded = torch.zeros(panels * 16, groups * group, dtype=weight.dtype)
    padded[:n, :k] = weight
    assert torch.equal(packed._packed, padded.view(panels, 16, groups, group).transpose(1, 2).flatten())
    assert (packed._scale is None) if scale is None else torch.equal(packed._scale, scale)


def test_numbers_that_are_none_are_not_rounded_to_some() -> None:
    linear = layer(32, 40, torch.float32)
    linear.weight[3, 7], linear.weight[4, 0] = float("nan"), -float("inf")
    packed = PackedLinear(linear, Int8Linear)
    assert packed._scale[:6].isfinite().tolist() == [True, True, True, False, False, True]
    assert packed(rows(2, 40, torch.float32)).isfinite().all(0).tolist()[:6] == [True, True, True, False, False, True]


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
@pytest.mark.parametrize("sizes", [(48, 32), (40, 7, 17), (2100, 33)])
def test_layers_side_by_side_are_packed_as_one(dtype: torch.dtype, quantize: bool, sizes: tuple[int, ...]) -> None:
    """Their weights are not copied before; the result has the bits of one layer's."""
    layers = [layer(n, 1030, dtype, seed=n) for n in sizes]
    whole, x = joined(layers), rows(3, 1030, dtype)
    assert isinstance(whole, SideBySide)
    assert not list(whole.parameters())
    assert torch.allclose(whole(x), concatenated(layers)(x), rtol=1e-2, atol=1e-1)
    model = nn.Sequential(whole)
    assert pack_linears(model, to_int8 if quantize else None) == {8 if quantize else None: 1}
    one = packed_layer(concatenated(layers), quantize)
    assert torch.equal(model[0]._packed, one._packed)
    assert torch.equal(model(x), one(x))


def test_what_there_is_no_kernel_for_is_left_to_the_caller() -> None:
    """Joined layers, too, as plain ones."""
    single, parts = layer(40, 24, torch.float32), [layer(n, 24, torch.float32) for n in (32, 9)]
    model = nn.ModuleDict({"single": single, "joined": joined(parts)})
    assert not pack_linears(model, lambda linear: lambda given: Int8Linear(given))
    assert model["single"] is single
    assert type(model["joined"]) is nn.Linear
    assert torch.equal(model["joined"].weight, concatenated(parts).weight)


def test_layers_of_a_model_are_packed_and_their_weights_dropped() -> None:
    embedding = nn.Embedding(20, 8)
    tied = nn.Linear(8, 20, bias=False)
    tied.weight = embedding.weight
    model = nn.ModuleDict({"embed": embedding, "inner": nn.Sequential(nn.Linear(8, 8), nn.ReLU()), "head": tied})
    half = model["float16"] = nn.Linear(8, 8, dtype=torch.float16)
    model.requires_grad_(False)
    want = model["head"](model["inner"](embedding.weight[:3]))
    assert pack_linears(model) == {None: 2}
    assert model["float16"] is half  # a type without kernels
    assert [*dict(model.named_parameters())] == ["embed.weight", "float16.weight", "float16.bias"]
    assert torch.allclose(model["head"](model["inner"](embedding.weight[:3])), want, atol=1e-5)


def test_layers_with_hooks_stay_and_packed_ones_state_their_type() -> None:
    hooked, own = layer(32, 32, torch.float32), layer(32, 32, torch.float32)
    hooked.register_forward_hook(lambda module, given, output: output * 2)
    own.forward = lambda x: x * 3  # type: ignore[method-assign]
    model = nn.Sequential(hooked, own, layer(32, 32, torch.bfloat16), layer(8, 32, torch.bfloat16))
    assert pack_linears(model, to_int8) == {8: 1, None: 1}
    assert [*model[:2]] == [hooked, own]
    assert [x.weight.dtype for x in model[2:]] == [torch.bfloat16] * 2


def test_layers_that_are_worth_it_are_rounded() -> None:
    model = nn.Sequential(layer(32, 8, torch.float32), layer(31, 32, torch.float32), layer(64, 31, torch.bfloat16))
    assert pack_linears(model, to_int8) == {8: 2, None: 1}
    assert [layer._packed.dtype for layer in model] == [torch.int8, torch.float32, torch.int8]


def test_weights_lie_in_huge_pages_side_by_side() -> None:
    memory = HugePages()
    tensors = [memory.empty(count, dtype) for count in (1, 1000, 9 << 20, 5) for dtype in DTYPES]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
    del memory
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert [tensor.unique().tolist() for tensor in tensors] == [[i] for i in range(len(tensors))]
