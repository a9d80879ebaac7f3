"""Activations in C++: those that gate, as `corellm_kernels.gpu.activations` has them in Triton, and plain ones."""

from __future__ import annotations

from torch import Tensor

from corellm_kernels.cpu.arguments import ActivationArguments
from corellm_kernels.cpu.library import empty, launch
from corellm_kernels.fusion.kernel_set import Approximation

_GELU: dict[Approximation, str] = {"none": "gelu", "tanh": "gelu_tanh"}


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return SiLU of the first half of each row, times the second half: `[..., width]` for `[..., 2 * width]`."""
    return _launch(gate_up, "silu", gated=True)


def gelu_and_mul(gate_up: Tensor, approximate: Approximation = "none") -> Tensor:
    """Return GELU of the first half of each row, times the second half: `[..., width]` for `[..., 2 * width]`.

    With `"tanh"`, it is approximated by the hyperbolic tangent.
    """
    return _launch(gate_up, _GELU[approximate], gated=True)


def activation_and_mul(gate_up: Tensor, name: str) -> Tensor:
    """Return an `activation` of the first half of each row, times the second half."""
    return _launch(gate_up, name, gated=True)


def activation(x: Tensor, name: str) -> Tensor:
    """Return `silu`, `gelu`, `gelu_tanh`, `quick_gelu` or `relu` of each element; `x` is contiguous."""
    return _launch(x, name, gated=False)


def _launch(x: Tensor, name: str, *, gated: bool) -> Tensor:
    rows = x.view(-1, x.shape[-1])
    width = x.shape[-1] // 2 if gated else x.shape[-1]
    out = empty((*x.shape[:-1], width), x.dtype)
    given = ActivationArguments(x.data_ptr(), rows.stride(0), out.data_ptr(), width, len(rows), width, gated)
    launch(name, (x.dtype,), given, x, out)
    return out
