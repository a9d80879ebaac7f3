"""What glibc's allocator counts itself, exactly: no other process and no page of memory plays a part."""

from __future__ import annotations

import ctypes
import os

import pytest

IS_COUNTED = bool(os.confstr("CS_GNU_LIBC_VERSION")) and "libasan" not in os.environ.get("LD_PRELOAD", "")
needs_glibc = pytest.mark.skipif(not IS_COUNTED, reason="another allocator than glibc's")


class _Numbers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _numbers() -> _Numbers:
    library = ctypes.CDLL(None)
    library.mallinfo.restype = _Numbers
    numbers: _Numbers = library.mallinfo()
    return numbers


def taken_from_the_system() -> int:
    """Bytes, less than 2 GiB: of its heaps, and of blocks that are taken and returned one by one."""
    numbers = _numbers()
    return int(numbers.arena + numbers.hblkhd)


def in_use() -> int:
    """Bytes of its heaps, less than 2 GiB, that were handed out and not freed."""
    return int(_numbers().uordblks)
