"""Selecting the GPU that work goes to, and asking what the CPU computes natively."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Make a GPU the current one of this thread: kernels, events and graphs belong to the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 natively; if not, float32 is faster."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported())  # with plain AVX-512, torch's kernels convert to float32
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
