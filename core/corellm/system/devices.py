"""The device that work goes to: selecting it for the duration of a call, and what the CPU computes natively."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

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


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one of this thread: kernels, events and graphs belong to the current GPU.

    Convolutions and RNNs of float32 compute in float32 there. By default torch rounds their inputs to TF32,
    which shows in the third digit of an encoder's output.
    """
    if device.type != "cuda":
        yield
        return
    operations: tuple[Any, Any] = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]
    before = [operation.fp32_precision for operation in operations]
    for operation in operations:
        operation.fp32_precision = "ieee"
    try:
        with torch.cuda.device(device):
            yield
    finally:
        for operation, precision in zip(operations, before, strict=True):
            operation.fp32_precision = precision


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; if not, float32 is faster."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported())  # with plain AVX-512, torch's kernels convert to float32
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
