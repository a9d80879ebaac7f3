"""Memory of mapped weight files that can be given back: its pages are as in the file, and come again when next used.

All tensors of a file lie in one mapping, which stays in memory until the last of them is freed; packed and
joined weights are copies. Without Linux's /proc, nothing is given back.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

_PROC = Path("/proc/self")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ...p .*(?:\.safetensors|\.gguf|/blobs/(?:sha256-)?[0-9a-f]{40,64})$")
"""Of a file of weights: by its name, or by its place in a cache whose names are links to files named by their sums."""
_ANY_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_WRITTEN = re.compile(r"(Anonymous|Swap): +[1-9]")
"""A line of smaps that a mapping has where some of its pages were written, and so are no longer the file's."""
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of a page in pagemap (Linux, `admin-guide/mm/pagemap`); a page that was written is of no file."""
_AT_ONCE = 1 << 20
"""Pages."""


def release_mapped_weights() -> None:
    """Give back the pages of private mappings of safetensors and GGUF files of which this process has written none.

    The pages of these alone are looked at. Where the system does not show pages, as in some sandboxes, smaps tells the
    same, for which it walks through all that the process has.
    """
    try:
        with open(_PROC / "maps", encoding="utf-8", errors="replace") as maps:
            mappings = [_MAPPING.match(line) for line in maps]
        ranges = [(int(found[1], 16), int(found[2], 16)) for found in mappings if found]
        try:
            with open(_PROC / "pagemap", "rb", buffering=0) as pagemap:
                clean = [(first, last) for first, last in ranges if not _is_written(pagemap, first, last)]
        except OSError:
            with open(_PROC / "smaps", encoding="utf-8", errors="replace") as smaps:
                clean = _clean_in(smaps)
    except OSError:
        return
    for first, last in clean:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _clean_in(smaps: Iterable[str]) -> list[tuple[int, int]]:
    """Addresses of such mappings without a written page."""
    clean: list[tuple[int, int]] = []
    is_weights = False
    for line in smaps:
        if found := _MAPPING.match(line):
            clean.append((int(found[1], 16), int(found[2], 16)))
        if _ANY_MAPPING.match(line):
            is_weights = found is not None
        elif is_weights and _WRITTEN.match(line):
            clean.pop()
            is_weights = False
    return clean


def _is_written(pagemap: BinaryIO, first: int, last: int) -> bool:
    """Whether a page in these addresses was written (it is in memory or swapped, and no file's), or is not told of."""
    for page in range(first // mmap.PAGESIZE, last // mmap.PAGESIZE, _AT_ONCE):
        pagemap.seek(8 * page)
        told = pagemap.read(num_bytes := 8 * min(_AT_ONCE, last // mmap.PAGESIZE - page))
        if len(told) < num_bytes:
            return True
        bits = np.frombuffer(told, dtype=np.uint64)
        if (((bits & np.uint64(_PRESENT | _SWAPPED)) != 0) & ((bits & np.uint64(_OF_FILE)) == 0)).any():
            return True
    return False
