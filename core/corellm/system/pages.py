"""Memory from the system that is taken when it is first written, in huge pages where there are any.

The processor translates fewer addresses to read it, and its first writes cause fewer page faults.
"""

from __future__ import annotations

import contextlib
import mmap


def map_pages(size: int) -> mmap.mmap:
    """Return `size` bytes of zeros, at least one; they are freed with the last reference to them."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a Linux without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
