"""Prepacked linear layers give what `F.linear` gives."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from corellm.loading.packed_linear import PackedLinear, pack_linears, packing_helps

pytestmark = pytest.mark.filterwarnings("default")

DTYPE = torch.bfloat16 if packing_helps(torch.bfloat16, torch.device("cpu")) else torch.float32
"""Processors that do not compute bfloat16 cannot pack it."""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (1, 5, 64)])
@torch.inference_mode()
def test_equals_linear(bias: bool, shape: tuple[int, ...]) -> None:
    """Any leading shape, with and without bias."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 96, bias=bias).to(DTYPE)
    x = torch.randn(shape).to(DTYPE)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-2, rtol=1e-2)


@torch.inference_mode()
def test_a_whole_model_keeps_its_output_and_its_embedding() -> None:
    """Every plain linear is swapped; a tied embedding still has its rows."""
    torch.manual_seed(0)
    embedding = nn.Embedding(32, 64)
    head = nn.Linear(64, 32, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Sequential(nn.Linear(64, 64), nn.GELU()), head).to(DTYPE)
    ids = torch.arange(9)
    before = model(ids)
    assert pack_linears(model) == 2
    assert not any(type(m) is nn.Linear for m in model.modules())
    torch.testing.assert_close(model(ids), before, atol=2e-2, rtol=2e-2)


def test_one_weight_at_a_time_is_in_memory_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a linear is packed, the weights of those before it are gone, at any depth."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3)))
    originals = [weakref.ref(module.weight) for module in model.modules() if isinstance(module, nn.Linear)]
    alive: list[int] = []

    def pack(linear: nn.Linear) -> nn.Module:
        alive.append(sum(original() is not None for original in originals))
        return nn.Identity()

    monkeypatch.setattr("corellm.loading.packed_linear.PackedLinear", pack)
    assert pack_linears(model) == 6
    assert alive == [6, 5, 4, 3, 2, 1]
    assert not any(original() is not None for original in originals)


def test_only_where_it_was_measured_to_help() -> None:
    """Not in float32, not on a GPU."""
    assert not packing_helps(torch.float32, torch.device("cpu"))
    assert not packing_helps(torch.bfloat16, torch.device("cuda"))
