"""A request's tensors in one piece of anonymous shared memory, with references in their place.

The memory has no name. It is freed with the last descriptor and the last tensor, also if a process is killed. Knows
tensors and nested lists of them; knows no requests.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import msgspec

from corellm.children.memory import anonymous_file
from corellm.errors import ProcessingError
from corellm.media.type_checks import is_tensor

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
_REFERENCE = 1
"""Type of the msgpack extension that stands for a tensor."""
_PLAIN = (bool, int, float, str, bytes, type(None))


class TensorMemory:
    """Collects tensors, then writes them all."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, torch.Tensor]] = []
        self._size = 0

    def refer(self, data: Any) -> Any:
        """The data with references for tensors: what msgpack can encode.

        Raises:
            ProcessingError: the data holds something else than tensors, numbers, text and lists.
        """
        if is_tensor(data):
            offset, nbytes = self._size, data.numel() * data.element_size()
            self._tensors.append((offset, data))
            self._size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            place = (str(data.dtype).removeprefix("torch."), tuple(data.shape), offset)
            return msgspec.msgpack.Ext(_REFERENCE, msgspec.msgpack.encode(place))
        if isinstance(data, list):
            return [self.refer(part) for part in data]
        if isinstance(data, _PLAIN):
            return data
        raise ProcessingError(
            f"an item holds a {type(data).__name__}, which cannot be sent to the engine's process; the adapter must "
            "return tensors, numbers, text, or lists of them"
        )

    def write(self) -> int | None:
        """The descriptor of memory with all tensors, which the caller closes; None without tensors.

        Raises:
            OSError: there is not enough memory.
        """
        if not self._size:
            return None
        file = anonymous_file("corellm-tensors")
        try:
            os.posix_fallocate(file, 0, self._size)  # or a write would end the process where memory is short
            memory = _map(file, shared=True)
            for offset, tensor in self._tensors:
                _tensor_at(memory, offset, tensor.dtype, tuple(tensor.shape)).copy_(tensor)
        except BaseException:
            os.close(file)
            raise
        return file


def map_memory(file: int | None) -> torch.UntypedStorage | None:
    """Map what `TensorMemory.write` returned; writes stay in this process. The descriptor may be closed after."""
    return None if file is None else _map(file, shared=False)


def restore(data: Any, memory: torch.UntypedStorage | None) -> Any:
    """What was given to `refer`; its tensors share the memory and keep it mapped."""
    if isinstance(data, list):
        return [restore(part, memory) for part in data]
    if not isinstance(data, msgspec.msgpack.Ext):
        return data
    import torch

    name, shape, offset = msgspec.msgpack.decode(data.data, type=tuple[str, tuple[int, ...], int])
    dtype = getattr(torch, name)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    if memory is None:
        raise ProcessingError("the tensors of the request's items did not arrive")
    return _tensor_at(memory, offset, dtype, shape)


def _map(file: int, *, shared: bool) -> torch.UntypedStorage:
    import torch

    # Python's mmap would keep a descriptor open for every waiting request
    memory = torch.UntypedStorage.from_file(f"/dev/fd/{file}", shared, os.fstat(file).st_size)
    assert isinstance(memory, torch.UntypedStorage)
    return memory


def _tensor_at(memory: torch.UntypedStorage, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    whole = torch.empty(0, dtype=torch.uint8).set_(memory)
    return whole[offset : offset + dtype.itemsize * math.prod(shape)].view(dtype).view(shape)
