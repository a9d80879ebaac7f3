"""A device's memory: what is free, what the profile run takes, what is left for KV blocks, and out-of-memory errors.

Knows bytes; knows neither models nor blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from corellm.errors import ConfigError
from corellm.system.control_group import free_memory

_HOST_SHARE = 0.4
"""Share of the free host memory that KV blocks may take when the operator does not say."""
_parts = [1]
"""Engines of one server that have this share together."""


def divide_host_memory(parts: int) -> None:
    """Leave room for other engines of one server, as many as there are parts but one, from now on."""
    _parts[0] = parts


class DeviceMemory:
    """The memory of the device that a model is about to be loaded on.

    Args:
        device: the CPU or a GPU.
        utilization: share of a GPU's memory to use.
    """

    def __init__(self, device: torch.device, utilization: float) -> None:
        self._device, self._utilization = device, utilization
        self._peak = 0
        if device.type == "cuda":
            self._total = torch.cuda.mem_get_info(device)[1]
            self._others = self._total - self.free()
            """Bytes in use before: by other processes, by CUDA itself, and by other models of this process."""
            self._before = torch.cuda.memory_allocated(device)

    def free(self) -> int:
        """Bytes that can be allocated now."""
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0]) + self._unused()
        return _free_host_memory()

    def _unused(self) -> int:
        """Bytes that this process holds without a tensor in them."""
        return torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)

    def measure_peak(self, step: Callable[[], None]) -> None:
        """Run the largest possible step on a GPU and note its peak memory for `left_for_blocks`."""
        if self._device.type != "cuda":
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        step()
        torch.cuda.synchronize(self._device)
        self._peak = torch.cuda.max_memory_allocated(self._device) - self._before
        torch.cuda.empty_cache()
        self._peak += self._unused()  # holes between weights, too small for anything large

    def left_for_blocks(self) -> int:
        """Bytes for KV blocks, beside the weights and the largest step.

        Raises:
            ConfigError: nothing is left.
        """
        if self._device.type != "cuda":
            return int(_HOST_SHARE * self.free() / _parts[0])
        left = int(self._utilization * self._total) - self._others - self._peak
        if left <= 0:
            total, others, peak = (n / 2**30 for n in (self._total, self._others, self._peak))
            raise ConfigError(
                f"no memory is left for KV blocks: of {total:.1f} GiB, {self._utilization:.0%} may be used "
                f"(gpu_memory_utilization), others have {others:.1f}, weights and the profile run take {peak:.1f}; "
                f"raise gpu_memory_utilization, or lower max_num_batched_tokens, limit_mm_per_prompt or the size of "
                f"items (mm_processor_kwargs)"
            )
        return left

    @contextmanager
    def explaining(self, what: str, way_out: str) -> Iterator[None]:
        """Turn out-of-memory errors into errors that say what needed the memory, and what to lower.

        Raises:
            ConfigError: the device has not enough memory for `what`.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"out of memory on {self._device} ({self.free() / 2**30:.1f} GiB free) for {what}: {way_out}"
            ) from error


def release_memory() -> None:
    """Return unused GPU memory; models with graphs are in reference cycles, so collect garbage first."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _free_host_memory() -> int:
    """Bytes of host memory that are free without swapping, within the container's limit."""
    granted = free_memory()
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
                return available if granted is None else min(available, granted)
    raise ConfigError("cannot tell how much memory is free on this system; give kv_cache_memory")
