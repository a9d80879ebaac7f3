"""Files of a directory that others may write to, opened so that nothing elsewhere is read in their place.

Knows paths; knows nothing of what is in files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from corellm.errors import MediaError
from corellm.media.files import open_regular_file

_NOT_FOLLOWED = os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_NONBLOCK)  # opening a device may have effects of its own


@contextmanager
def opened_below(root: Path, name: str) -> Iterator[BinaryIO]:
    """A regular file in a directory, to read bytes from; symbolic links must not lead out of it.

    Args:
        root: the directory, resolved.
        name: a path, absolute or relative to `root`.

    Raises:
        OSError: there is no such file, or it cannot be opened.
        MediaError: it is not a regular file.
        RuntimeError, ValueError: a link leads in a circle; the file is elsewhere, or no file has such a name.
    """
    opened = _open_below(root, (root / name).resolve(strict=True).relative_to(root))
    try:
        stream = open_regular_file(f"/dev/fd/{opened}")
    except MediaError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None  # whose path says nothing
        raise
    finally:
        os.close(opened)
    with stream:
        yield stream


def _open_below(root: Path, inner: Path) -> int:
    """A descriptor of a file, not for reading; what became a symbolic link since it was resolved is not followed."""
    opened = os.open(root, _NOT_FOLLOWED)
    for part in inner.parts:
        outer = opened
        try:
            opened = os.open(part, _NOT_FOLLOWED, dir_fd=outer)
        finally:
            os.close(outer)
    return opened
