"""Memory of intermediate results of recorded plans, which all plans of an engine share: only one runs at a time.

A tensor's memory is given to the next when the last reference to it is gone. Python counts references, so that happens
at the same place of a step each time: what a plan recorded stays true when it is replayed.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_UNIT = 4096
"""Blocks are multiples of this many bytes."""


class PlanMemory:
    """Blocks of memory, none of which is ever freed before this is."""

    def __init__(self) -> None:
        self._blocks: dict[int, Tensor] = {}
        """All blocks, by address."""
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks.values())

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of a block that no tensor has."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return torch.empty(shape, dtype=dtype)
        address = self._take(nbytes)
        owner = (ctypes.c_char * nbytes).from_address(address)  # lives as long as the tensor's storage
        owner.block = self._blocks[address]  # type: ignore[attr-defined]  # outlives this, if the tensor does
        weakref.finalize(owner, self._free.append, address).atexit = False
        return torch.frombuffer(owner, dtype=dtype).view(shape)

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in a block that no tensor has; the tensor itself if its memory has gaps."""
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        inner = tensor.permute(order)
        if not inner.is_contiguous():
            return tensor
        back = sorted(range(tensor.dim()), key=order.__getitem__)
        return self.empty(inner.shape, tensor.dtype).copy_(inner).permute(back)

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in one of these blocks."""
        return tensor.untyped_storage().data_ptr() in self._blocks

    def alias(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the same place, in a block of these, that does not keep the block from others."""
        block = self._blocks[tensor.untyped_storage().data_ptr()].view(tensor.dtype)
        return block.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _take(self, nbytes: int) -> int:
        """Return the address of the smallest free block that is large enough, or of a new one."""
        fitting = [address for address in self._free if self._blocks[address].nbytes >= nbytes]
        if fitting:
            address = min(fitting, key=lambda address: self._blocks[address].nbytes)
            self._free.remove(address)
            return address
        block = torch.empty(-(-nbytes // _UNIT) * _UNIT, dtype=torch.uint8)
        self._blocks[block.data_ptr()] = block
        return block.data_ptr()
