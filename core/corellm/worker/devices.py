"""Which GPU work goes to."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Kernels, events and graphs made by this thread meanwhile belong to this GPU: they go by the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
