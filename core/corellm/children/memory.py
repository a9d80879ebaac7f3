"""Memory that a child shares with its parent: an open file without a name, which nothing outlives.

Linux keeps such a file in memory; elsewhere it is a temporary file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_BYTES = 1 << 25
"""Memory up to this size is used again: fresh memory takes longer than what is written to it."""


def anonymous_file(label: str) -> int:
    """The descriptor of an empty file without a name, which the caller closes; Linux shows the label in `/proc`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedMemory:
    """The parent's or the child's end; the other process may change the bytes at any time.

    Args:
        descriptor: of the open file; this object closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None
        try:
            self._can_shrink = not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except (AttributeError, OSError):  # no seals on this system
            self._can_shrink = True

    @classmethod
    def create(cls) -> SharedMemory:
        """Empty memory, which can grow and never shrinks."""
        descriptor = anonymous_file("corellm")
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(descriptor)

    def write(self, data: bytes | bytearray | memoryview, at: int = 0) -> int:
        """Write all of `data` at a position; returns the position after it."""
        view = memoryview(data).cast("B")
        while view:
            done = os.pwrite(self.descriptor, view, at)
            view, at = view[done:], at + done
        return at

    def read(self, count: int, at: int = 0) -> bytes:
        """A copy of `count` bytes.

        Raises:
            EOFError: there are fewer.
        """
        if self._size() < at + count:  # before memory is taken for them
            raise EOFError
        data = os.pread(self.descriptor, count, at)
        if len(data) < count:
            raise EOFError
        return data

    @contextmanager
    def view(self, count: int, at: int = 0) -> Iterator[memoryview]:
        """`count` bytes without a copy, except where the other process could shorten them.

        Reading a mapping beyond the end of its file would end this process.

        Raises:
            EOFError: there are fewer.
        """
        if self._can_shrink:
            yield memoryview(self.read(count, at))
            return
        if self._mapped is None or len(self._mapped) < at + count:
            if self._size() < at + count:
                raise EOFError
            self._mapped = mmap.mmap(self.descriptor, at + count)
        with memoryview(self._mapped) as whole, whole[at : at + count] as part:
            yield part

    def trim(self) -> None:
        """Give back what is more than `KEPT_BYTES`; its bytes are lost."""
        if os.fstat(self.descriptor).st_blocks * 512 <= KEPT_BYTES:
            return
        if self._can_shrink:
            os.ftruncate(self.descriptor, KEPT_BYTES)
            return
        self._mapped = None
        with mmap.mmap(self.descriptor, 0) as whole:
            whole.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        """Close the file; what is mapped of it goes with its last reader."""
        os.close(self.descriptor)

    def _size(self) -> int:
        return os.fstat(self.descriptor).st_size
