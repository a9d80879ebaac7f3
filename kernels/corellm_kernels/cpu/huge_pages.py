"""Memory for packed weights, in huge pages: products read all of it, and the processor translates fewer addresses."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from corellm.system.pages import map_pages

_HUGE = 2 << 20
"""Bytes of a huge page on x86-64; elsewhere only the rounding differs."""
_CHUNK = 32 << 20
"""Bytes that are mapped at once. They take no memory before they are written."""
_LINE = 64
"""Tensors begin at multiples of this many bytes."""


class HugePages:
    """Hands out memory that is freed together: a mapping lasts as long as one of its tensors."""

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None
        self._used = 0

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor `[count]`, of at least one element."""
        size = count * dtype.itemsize
        if self._pages is None or self._used + size > len(self._pages):
            self._pages, self._used = map_pages(max(_CHUNK, -(-size // _HUGE) * _HUGE)), 0
        start, self._used = self._used, self._used + -(-size // _LINE) * _LINE
        return torch.frombuffer(self._pages, dtype=dtype, count=count, offset=start)
