"""Asynchronous copies between host and device."""

from __future__ import annotations

from collections.abc import Mapping
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

    What it has twice is copied once.
    """
    moved: Held = held if device.type == "cpu" else _uploaded(held, device, {})
    return moved


def _uploaded(held: Any, device: torch.device, known: dict[int, Any]) -> Any:
    """Return a tensor, a dataclass or a mapping on a device; anything else as it is. `known` is by id."""
    if isinstance(held, Mapping):
        return {key: _uploaded(value, device, known) for key, value in held.items()}
    if id(held) not in known:
        if isinstance(held, Tensor):
            known[id(held)] = upload(held, device)
        elif is_dataclass(held) and not isinstance(held, type):
            moved = {field.name: _uploaded(getattr(held, field.name), device, known) for field in fields(held)}
            known[id(held)] = replace(held, **moved)
    return known.get(id(held), held)


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
