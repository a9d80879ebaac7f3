"""A folder in which something is written that gets its name when it is whole. What a killed process left is removed.

A folder that is being written is locked by its process, whose end releases it. Knows nothing of what is written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from glob import escape
from pathlib import Path


@contextmanager
def unfinished_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, which is removed at the end if it still has its name.

    What killed processes left for the same target is removed first; where the file system has no locks, it stays.
    """
    place, prefix = target.absolute().parent, f".{target.name}-unfinished-"
    for left in place.glob(f"{escape(prefix)}*"):
        with ExitStack() as free:
            if _lock(left, free, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as held:
        made = _made(place, prefix, held)
        while not made.is_dir():  # another process took it for one that was left, before it was locked
            made = _made(place, prefix, held)
        yield made


def _made(place: Path, prefix: str, held: ExitStack) -> Path:
    """Return a new folder that is locked, if that is possible, and removed when `held` ends."""
    made = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
    held.callback(shutil.rmtree, made, ignore_errors=True)
    _lock(made, held, fcntl.LOCK_EX)
    return made


def _lock(folder: Path, held: ExitStack, how: int) -> bool:
    """Lock a folder until `held` ends; return whether that was possible."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, opened)
        fcntl.flock(opened, how)
    except OSError:
        return False
    return True
