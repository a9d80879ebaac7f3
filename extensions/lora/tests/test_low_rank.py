"""Products of low rank: the kernel and its twin in torch compute the same, and each row's is its own bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corellm.modelling.linear_additions import Addition, LinearAdditions, LowRankAddition
from corellm_kernels.cpu import library
from corellm_kernels.cpu.arguments import LowRankPart
from corellm_kernels.cpu.linear import PackedLinear, add_product
from corellm_kernels.cpu.low_rank import add_low_rank as compiled
from corellm_kernels.cpu.memory import PlanMemory
from corellm_kernels.cpu.plan import RecordedPlan
from corellm_lora.low_rank import Slots, add_low_rank

SHAPES = [(64, 96, 8), (37, 51, 4), (16, 600, 20), (1, 1, 4)]
"""Inputs, outputs, the highest rank: multiples of vectors, none, several pieces, a single number."""
RANKS = [0, 1, 3, 4, 8, 20]
UNITS = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8}
"""What inner products and results are rounded to, relative to their size."""


@pytest.fixture(params=["torch", "compiled"])
def add(request: pytest.FixtureRequest) -> Callable[..., None]:
    """The product in torch, and that in C++."""
    if request.param == "torch":
        return add_low_rank
    if library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    return compiled


def made(inputs: int, outputs: int, most: int, dtype: torch.dtype) -> tuple[Slots, list[tuple[Tensor, Tensor, float]]]:
    """Slots with factors of several ranks, one of them filled twice; and the factors."""
    generator = torch.Generator().manual_seed(inputs)
    slots = Slots(len(RANKS), most, inputs, outputs, dtype, torch.device("cpu"))
    factors = []
    for slot, rank in enumerate(RANKS):
        rank = min(rank, most)
        a, b = (torch.randn(size, generator=generator).to(dtype) for size in ((rank, inputs), (outputs, rank)))
        factors.append((a, b, 0.5 + slot))
        if slot:
            slots.fill(slot, torch.full((most, inputs), 7.0), torch.full((outputs, most), 7.0), 1.0)
            slots.fill(slot, a, b, 0.5 + slot)
    return slots, factors


def call(add: Callable[..., None], slots: Slots, x: Tensor, output: Tensor, of_row: Tensor) -> Tensor:
    """The output with what is added to it."""
    result = output.clone()
    add(x, result, slots, of_row)
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(add: Callable[..., None], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Those of matrices in float64, but for two roundings, for rows of all slots; a row of slot 0 keeps its bits."""
    slots, factors = made(*shape, dtype)
    inputs, outputs, _ = shape
    of_row = torch.tensor([0, 1, 1, 1, 1, 1, 2, 5, 5, 0, 3, 4, 4, 4, 0])
    generator = torch.Generator().manual_seed(1)
    x, output = (torch.randn(len(of_row), n, generator=generator).to(dtype) for n in (inputs, outputs))
    result = call(add, slots, x, output, of_row)
    for row, slot in enumerate(of_row.tolist()):
        a, b, scale = factors[slot]
        inner, outward = a.double() @ x[row].double(), (b.float() * scale).to(dtype).double()
        want = output[row].double() + (outward @ inner if slot else 0)
        bound = (
            UNITS[dtype] * (want.abs() + outward.abs() @ inner.abs())
            + 1e-5 * (a.double().abs() @ x[row].double().abs()).sum()
        )
        assert ((result[row].double() - want).abs() <= bound).all()
        assert result[row].equal(output[row]) == (slot == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rows_product_is_its_own(add: Callable[..., None], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Alone, among others, in another slot and with another number of threads, bit for bit."""
    slots, _ = made(*shape, dtype)
    inputs, outputs, _ = shape
    generator = torch.Generator().manual_seed(2)
    of_row = torch.randint(0, len(RANKS), (33,), generator=generator)
    x, output = (torch.randn(33, n, generator=generator).to(dtype) for n in (inputs, outputs))
    together = call(add, slots, x, output, of_row)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for row in range(33):
            alone = call(add, slots, x[row : row + 1], output[row : row + 1], of_row[row : row + 1])
            assert alone[0].equal(together[row])
    finally:
        torch.set_num_threads(threads)
    order = torch.tensor([0, *reversed(range(1, len(RANKS)))])
    moved: Any = Slots(len(RANKS), shape[2], inputs, outputs, dtype, torch.device("cpu"))
    moved.a, moved.b, moved.ranks = slots.a[order].contiguous(), slots.b[order].contiguous(), slots.ranks[order]
    assert call(add, moved, x, output, order.argsort()[of_row]).equal(together)


def test_rows_may_lie_apart(add: Callable[..., None]) -> None:
    """Between those of joined layers, which are not touched."""
    slots, _ = made(64, 96, 8, torch.float32)
    of_row = torch.tensor([1, 0, 3])
    x, joined = torch.randn(3, 80)[:, 8:72], torch.randn(3, 200)
    before = joined.clone()
    add(x, joined[:, 50:146], slots, of_row)
    assert joined[:, 50:146].equal(call(add, slots, x.contiguous(), before[:, 50:146].contiguous(), of_row))
    assert joined[:, :50].equal(before[:, :50])
    assert joined[:, 146:].equal(before[:, 146:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_packed", [False, True])
@torch.inference_mode()
def test_rows_that_are_changed_apart(dtype: torch.dtype, is_packed: bool) -> None:
    """They are what the change makes of the layer's own outputs, also in sums; other rows stay as they are."""
    if is_packed and library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    slots, _ = made(64, 96, 8, dtype)
    slot_of_row, places = torch.tensor([0, 4, 0, 0, 4]), torch.tensor([0, 3])
    linear = nn.Linear(64, 96, dtype=dtype)
    model = nn.Sequential(PackedLinear(linear) if is_packed else linear)
    x, residual = torch.randn(5, 64, dtype=dtype), torch.randn(5, 96, dtype=dtype)
    plain, linears, apart = model(x), LinearAdditions(model, model), list[tuple[Tensor, Addition]]()
    linears.add("0", LowRankAddition(slots, lambda count: slot_of_row[:count], add_low_rank, lambda: apart))
    assert isinstance(model[0], PackedLinear) == is_packed

    def results() -> list[Tensor]:
        total = residual.clone()
        add_product(total, x, model[0])
        return [model(x), total]

    with_factors = results()
    apart.append((places, lambda given, output: output.add_(3.0 * given[:, :1])))
    changed, want = results(), plain[places] + 3.0 * x[places, :1]
    for before, after in zip(with_factors, changed, strict=True):
        assert after[[1, 2, 4]].equal(before[[1, 2, 4]])
    assert changed[0][places].equal(want)
    assert changed[1][places].equal(residual[places] + want)
    assert (with_factors[0] == plain).all(1).tolist() == [True, False, True, True, False]
    assert linears.base("0")(x).equal(plain)


def test_a_recorded_product() -> None:
    """A plan keeps what the kernel reads, and replays it on the factors and rows of the day."""
    if library.unavailable() is not None:
        pytest.skip(str(library.unavailable()))
    slots, _ = made(64, 96, 8, torch.float32)
    x, output, of_row = torch.randn(3, 64), torch.zeros(3, 96), torch.tensor([0, 1, 0])
    plan = RecordedPlan(PlanMemory())
    plan.capture(lambda: compiled(x, output, slots, of_row))
    others = [(LowRankPart * 1)() for _ in range(1000)]  # where the plan would look, had it kept nothing
    for _ in range(3):
        x.normal_()
        output.zero_()
        of_row.random_(len(RANKS))
        slots.fill(1, torch.randn(4, 64), torch.randn(96, 4), 2.0)
        plan.replay()
        assert output.equal(call(compiled, slots, x, torch.zeros(3, 96), of_row))
    assert len(others) == 1000


def test_what_the_kernel_does_not_take() -> None:
    """Is refused, where it would read other memory."""
    slots, _ = made(64, 96, 8, torch.float32)
    x, output, of_row = torch.randn(1, 64), torch.randn(1, 96), torch.zeros(1, dtype=torch.int64)
    odd = Slots(2, 8, 64, 96, torch.float32, torch.device("cpu"))
    odd.a = odd.a[:, :6].contiguous()
    with pytest.raises(TypeError, match="multiple of 4"):
        compiled(x, output, odd, of_row)
    with pytest.raises(TypeError, match="one type"):
        compiled(x.bfloat16(), output.bfloat16(), slots, of_row)
