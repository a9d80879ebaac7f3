"""Norms and activations equal torch's, for ragged widths and for numbers at the edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from corellm_kernels.cpu.activation_layers import FusedActivation, fuse_activations
from corellm_kernels.cpu.activations import (
    activation,
    gelu_and_mul,
    silu_and_mul,
)
from corellm_kernels.cpu.norms import layer_norm, norm_heads, rms_norm
from tests.kernels.cpu.conftest import SetDtype

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7}
WIDTHS = [1, 7, 8, 33, 512, 2049]


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_norms(dtype: torch.dtype, width: int, size: float) -> None:
    x, residual = (draw(2, 3, width, dtype=dtype, seed=seed) * size for seed in (1, 2))
    weight, bias = (draw(width, dtype=dtype, seed=seed) for seed in (3, 4))
    total = (x.float() + residual.float()).to(dtype)
    near = partial(torch.testing.assert_close, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * 4)
    near(rms_norm(x, weight, 1e-6), exact_rms(x, weight, 1e-6).to(dtype))
    kept = residual.clone()
    near(rms_norm(x, weight, 1e-6, residual=kept), exact_rms(total, weight, 1e-6).to(dtype))
    assert torch.equal(kept, total)
    for shift in (bias, None):
        exact = F.layer_norm(x.double(), (width,), weight.double(), None if shift is None else shift.double(), 1e-5)
        near(layer_norm(x, weight, shift, 1e-5), exact.to(dtype), atol=TOLERANCES[dtype] * 16)
    kept = residual.clone()
    exact = F.layer_norm(total.double(), (width,), weight.double(), bias.double(), 1e-5).to(dtype)
    near(layer_norm(x, weight, bias, 1e-5, residual=kept), exact, atol=TOLERANCES[dtype] * 16)
    assert torch.equal(kept, total)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_heads_are_normed_in_a_projection(dtype: torch.dtype) -> None:
    whole = draw(5, 6 * 24, dtype=dtype)
    before = whole.clone()
    query, key = whole[:, : 4 * 24].unflatten(1, (4, 24)), whole[:, 4 * 24 : 5 * 24].unflatten(1, (1, 24))
    weights = [draw(24, dtype=dtype, seed=seed) for seed in (5, 6)]
    wanted = [exact_rms(x, w, 1e-6).to(dtype) for x, w in zip((query, key), weights, strict=True)]
    norm_heads(query, key, *weights, 1e-6, 1e-6)
    for ours, exact in zip((query, key), wanted, strict=True):
        torch.testing.assert_close(ours, exact, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert torch.equal(whole[:, 5 * 24 :], before[:, 5 * 24 :])


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_activations(dtype: torch.dtype, name: str, width: int) -> None:
    x = draw(3, width, dtype=dtype) * 4
    exact = ACTIVATIONS[name](x.double()).to(dtype)
    torch.testing.assert_close(activation(x, name), exact, rtol=TOLERANCES[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gates(dtype: torch.dtype) -> None:
    gate_up = draw(3, 2 * 77, dtype=dtype) * 3
    gate, up = gate_up.double().chunk(2, dim=-1)
    near = partial(torch.testing.assert_close, rtol=TOLERANCES[dtype], atol=2e-6)
    near(silu_and_mul(gate_up), (F.silu(gate) * up).to(dtype))
    near(gelu_and_mul(gate_up), (F.gelu(gate) * up).to(dtype))
    near(gelu_and_mul(gate_up, "tanh"), (F.gelu(gate, approximate="tanh") * up).to(dtype))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_large_and_missing_numbers(name: str) -> None:
    x = torch.tensor([-1e30, -1e4, -100.0, -87.4, -0.0, 0.0, 87.4, 1e4, 1e30, torch.nan])
    ours, torchs = activation(x, name), ACTIVATIONS[name](x)
    assert torch.equal(ours.isnan(), torchs.isnan())
    torch.testing.assert_close(ours[:-1], torchs[:-1], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16, torch.float64])
def test_modules_are_recognized_by_what_they_compute(default: torch.dtype, default_dtype: SetDtype) -> None:
    """Activations of transformers and torch are fused, with any default type; others stay, and those with hooks."""
    default_dtype(default)
    known = [ACT2FN[name] for name in ("quick_gelu", "gelu", "gelu_pytorch_tanh", "gelu_new", "silu", "relu")]
    known.append(nn.ReLU(inplace=True))  # before those that change no positive number
    others = [nn.Identity(), nn.Dropout(), nn.Softmax(dim=-1), nn.Tanh(), nn.LeakyReLU(), ACT2FN["relu2"], nn.Flatten()]
    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(nn.Sequential(*known), nn.ModuleList([*others, hooked])).eval()
    assert fuse_activations(model) == len(known)
    x = draw(3, 50, dtype=torch.float32) * 4
    for fused, original in zip(model[0], known, strict=True):
        assert isinstance(fused, FusedActivation)
        torch.testing.assert_close(fused(x), original(x.clone()), rtol=2e-5, atol=1e-5)
        torch.testing.assert_close(fused(x.double()), original(x.double()))  # a type without kernels
        torch.testing.assert_close(fused(x[0, 0]), original(x[0, 0].clone()))
        assert fused(x.t()).shape == (50, 3)
    assert [*model[1]] == [*others, hooked]


def test_mixed_types_are_refused() -> None:
    with pytest.raises(TypeError, match="one type"):
        rms_norm(draw(1, 8, dtype=torch.float32), draw(8, dtype=torch.bfloat16), 1e-6)
    with pytest.raises(TypeError, match="norm_torch"):
        rms_norm(draw(1, 8, dtype=torch.float16), draw(8, dtype=torch.float16), 1e-6)
