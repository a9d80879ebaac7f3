"""Which GPU work goes to, and what a CPU computes itself."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Kernels, events and graphs made by this thread meanwhile belong to this GPU: they go by the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; where it does not, float32 is faster."""
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported())  # torch's kernels take AVX-512 without it, too, and convert
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
