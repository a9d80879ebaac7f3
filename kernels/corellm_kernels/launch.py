"""What launchers have in common: sizes of blocks, and what the device offers."""

from __future__ import annotations

from functools import cache

import torch


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`, which is at least 1."""
    return 1 << (n - 1).bit_length()


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; that of an H100 where there is none, so that tests launch what GPUs do."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have; those of an H100 where there is no GPU."""
    if device.type != "cuda":
        return 227 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # its stub lacks it
