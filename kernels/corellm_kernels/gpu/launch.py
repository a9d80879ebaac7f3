"""Helpers of kernel launches: block sizes and properties of the device."""

from __future__ import annotations

from functools import cache

import torch


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`, which is at least 1."""
    return 1 << (n - 1).bit_length()


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; without one, an H100's, so that tests launch the same grids."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may use; without a GPU, an H100's."""
    if device.type != "cuda":
        return 227 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # its stub lacks it
