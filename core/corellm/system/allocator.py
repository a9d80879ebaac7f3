"""The C library's allocator: which freed memory stays with the process.

By default glibc returns freed memory to the system when 128 KiB are free at the end of the heap, and takes a large
block from the system anew, until the first one is freed: it then keeps blocks up to that size in heaps, one for each
thread or so. What an engine's steps free should stay, because the next step needs as much, and each page that went
comes back by a page fault, hundreds of thousands of them in a batch. What a server frees should go: a large request
may be the only one of its size. Knows glibc only; other allocators keep their own ways.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
"""Free bytes at the end of the heap that stay: more than steps on a CPU take for their tensors."""
_HEAP_BYTES = 32 << 20
"""Smallest block that the system gives and takes back by itself: the largest value that glibc allows."""
_LARGE_BYTES = 1 << 20
"""Smallest block of a large request: its body, its media."""
_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, unless the user has set how much."""
    _set({_M_TRIM_THRESHOLD: _KEPT_BYTES, _M_MMAP_THRESHOLD: _HEAP_BYTES})


def return_large_blocks() -> None:
    """Let large blocks go back to the system as soon as they are freed, unless the user has set which."""
    _set({_M_MMAP_THRESHOLD: _LARGE_BYTES})


def return_freed_memory() -> None:
    """Give what is free now back to the system: what loading took, and steps will not need."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _set(options: dict[int, int]) -> None:
    library = _glibc()
    if library is not None and not any(name in os.environ for name in _USERS):
        for option, value in options.items():
            library.mallopt(option, value)


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
