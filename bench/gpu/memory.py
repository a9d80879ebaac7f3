"""GPU memory that nobody holds any more, given back."""

from __future__ import annotations

import gc

import torch


def release() -> float:
    """Give it back; the GiB that somebody still holds."""
    gc.collect()
    if not torch.cuda.is_initialized():
        return 0.0
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() / 2**30
