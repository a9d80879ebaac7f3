"""Memory that is shared with another process by an open file: anonymous, so that no path or name outlives its users.

Linux keeps such a file in memory; elsewhere it is a temporary file without a name.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import MAP_SHARED, PROT_READ, mmap


class NotThereError(Exception):
    """A file has fewer bytes than another process said."""


def create() -> int:
    """A descriptor of an empty anonymous file that can grow and never shrinks; the caller closes it."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    descriptor = os.memfd_create("corellm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


def write(descriptor: int, data: bytes | bytearray | memoryview, at: int = 0) -> int:
    """Write all of `data` at a position; returns the position after it."""
    view = memoryview(data).cast("B")
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done
    return at


@contextmanager
def view(descriptor: int, count: int, at: int) -> Iterator[memoryview | bytes]:
    """`count` bytes of a file that another process made and may still write to.

    Mapped if it can never shrink: reading a mapping beyond the end would end this process.

    Raises:
        NotThereError: it is not a regular file, or has fewer bytes.
    """
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_size < at + count:
        raise NotThereError
    if not _never_shrinks(descriptor):
        copied = os.pread(descriptor, count, at)
        if len(copied) < count:
            raise NotThereError
        yield copied
        return
    with (
        mmap(descriptor, at + count, MAP_SHARED, PROT_READ) as mapped,
        memoryview(mapped) as whole,
        whole[at : at + count] as part,
    ):
        yield part


def _never_shrinks(descriptor: int) -> bool:
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except (AttributeError, OSError):  # no seals on this system, or of this file
        return False
