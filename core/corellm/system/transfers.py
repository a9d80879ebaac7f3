"""Asynchronous copies between host and device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on a device; on the CPU it shares its memory."""
    on_host = torch.from_numpy(array)
    if device.type == "cuda":  # only copies from pinned memory are asynchronous
        on_host = on_host.pin_memory()
    return on_host.to(device, non_blocking=True)


class Download:
    """A tensor on its way to the host.

    Args:
        tensor: on any device; one on the CPU must not be changed until it is read.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._host, self._arrived = tensor, None
        if tensor.is_cuda:
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> Any:
        """Wait for this copy, not for later work of the device; return its values as nested lists."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()
