"""Memory of tensors that is given back to the system, or to the device, while the tensors stay.

On a CPU a tensor keeps its address: its pages are gone, and come back as zeros (of a mapped file: as in the file) when
they are next used. On a GPU it has no memory until it is given some, at another address. Knows neither weights nor
caches.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable

import torch
from torch import Tensor


def discard(tensors: Iterable[Tensor]) -> None:
    """Give back the memory of tensors, whose values are lost; those in a library's own format keep it."""
    for tensor in tensors:
        if tensor.is_mkldnn:
            continue
        if tensor.device.type == "cpu":
            _discard_pages(tensor)
        else:
            tensor.untyped_storage().resize_(0)


class SetAside:
    """Memory of tensors that is given back until `restore`.

    Args:
        tensors: whose.
        keep: whether their values come back: those of a GPU are copied to the host meanwhile, and a CPU's stay where
            they are. Otherwise they come back as zeros.
    """

    def __init__(self, tensors: Iterable[Tensor], *, keep: bool) -> None:
        self._storages: list[tuple[torch.UntypedStorage, int, Tensor | None]] = []
        """Storages on a GPU, each with its bytes and its values on the host."""
        for tensor in tensors:
            storage = None if tensor.device.type == "cpu" else tensor.untyped_storage()
            if storage is not None and storage.nbytes():  # else another tensor has the same one
                self._storages.append(
                    (storage, storage.nbytes(), _bytes(storage).to("cpu", copy=True) if keep else None)
                )
            if storage is not None or not keep:
                discard([tensor])

    def restore(self) -> None:
        """Give the tensors memory again."""
        for storage, num_bytes, values in self._storages:
            storage.resize_(num_bytes)
            if values is None:
                _bytes(storage).zero_()
            else:
                _bytes(storage).copy_(values)
        self._storages.clear()


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _discard_pages(tensor: Tensor) -> None:
    """Give back the pages that a tensor has whole, where the system takes them and a later read gives zeros."""
    outward = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)  # a transposed weight has its memory, too
    if not hasattr(mmap, "MADV_DONTNEED") or not tensor.permute(outward).is_contiguous():
        return
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)
