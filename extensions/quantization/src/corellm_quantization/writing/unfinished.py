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
    with ExitStack() as until_made, ExitStack() as held:
        if _lock(place, until_made):  # no other process makes one meanwhile
            for left in place.glob(f"{escape(prefix)}*"):
                with ExitStack() as free:
                    if _lock(left, free, wait=False):
                        shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(dir=place, prefix=prefix))
        held.callback(shutil.rmtree, made, ignore_errors=True)
        _lock(made, held)
        until_made.close()
        yield made


def _lock(folder: Path, held: ExitStack, *, wait: bool = True) -> bool:
    """Lock a folder until `held` ends; return whether that was possible."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, opened)
        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
