"""The device that work goes to: selecting it for the duration of a call, and what the CPU computes natively."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch


class HasDevice(Protocol):
    """An object that computes on one device."""

    device: torch.device


_Owner = TypeVar("_Owner", bound=HasDevice)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def for_inference(
    function: Callable[Concatenate[_Owner, _Arguments], _Result],
) -> Callable[Concatenate[_Owner, _Arguments], _Result]:
    """Decorate a function: it runs on the device of its first argument, without gradients."""

    @wraps(function)
    def run(owner: _Owner, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with on_device(owner.device), torch.inference_mode():
            return function(owner, *args, **kwargs)

    return run


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Make a GPU the current one of this thread: kernels, events and graphs belong to the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def keep_float32(device: torch.device) -> None:
    """Have a GPU's convolutions and RNNs of float32 compute in float32, in all of this process and from now on.

    By default torch rounds their inputs to TF32, which shows in the third digit of an encoder's output. There is no
    setting for a thread or a model.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; if not, float32 is faster."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported())  # with plain AVX-512, torch's kernels convert to float32
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
