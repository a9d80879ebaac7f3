"""Asynchronous copies between host and device."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

Held = TypeVar("Held")


def upload(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return an array of the host on a device; on the CPU it shares its memory."""
    on_host = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type == "cuda":  # only copies from pinned memory are asynchronous
        on_host = on_host.pin_memory()
    return on_host.to(device, non_blocking=True)


def upload_all(held: Held, device: torch.device) -> Held:
    """Return a dataclass with its tensors on a device, also those of dataclasses in it; on the CPU it is the same.

    A tensor that it has twice is copied once.
    """
    return held if device.type == "cpu" else _uploaded(held, device, {})


def _uploaded(held: Held, device: torch.device, known: dict[int, Tensor]) -> Held:
    moved: dict[str, Any] = {}
    for field in fields(held):  # type: ignore[arg-type]
        value = getattr(held, field.name)
        if isinstance(value, Tensor):
            if id(value) not in known:
                known[id(value)] = upload(value, device)
            moved[field.name] = known[id(value)]
        elif is_dataclass(value):
            moved[field.name] = _uploaded(value, device, known)
    return replace(held, **moved)  # type: ignore[type-var]


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
