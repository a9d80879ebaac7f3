"""Memory of mapped weight files that can be given back: its pages are as in the file, and come again when next used.

All tensors of a safetensors file lie in one mapping, which stays in memory until the last of them is freed; packed and
joined weights are copies. Without Linux's /proc, nothing is given back.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterable, Iterator

_HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ...(.) ")


def release_mapped_weights() -> None:
    """Give back the pages of private mappings of safetensors files of which this process has written none."""
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as smaps:
            ranges = list(_clean_ranges(smaps))
    except OSError:
        return
    for first, last in ranges:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _clean_ranges(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The addresses of private mappings of such files without a written page, in the form of /proc/self/smaps."""
    found: tuple[int, int] | None = None
    for line in smaps:
        if header := _HEADER.match(line):
            if found is not None:
                yield found
            first, last, sharing = header.groups()
            is_weights = sharing == "p" and line.rstrip().endswith(".safetensors")
            found = (int(first, 16), int(last, 16)) if is_weights else None
        elif line.startswith(("Anonymous:", "Swap:")) and line.split()[1] != "0":
            found = None
    if found is not None:
        yield found
