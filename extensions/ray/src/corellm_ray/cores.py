"""Cores of this machine for replicas: each is one replica's, by a lock that the system frees when its process ends.

Ray counts cores and names none. Knows the cores that this process may use, and locks of files; knows no engine.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import BinaryIO


def bound_to_cores(number: int) -> list[BinaryIO]:
    """Keep this process, and the threads that it will start, to cores that no other replica has.

    Args:
        number: of cores; 0 for any.

    Returns:
        The locks, which hold until they are closed. None, and nothing was bound, if there are not so many free cores:
        then the system shares them out.
    """
    if not number or not hasattr(os, "sched_setaffinity"):
        return []
    folder = Path(tempfile.gettempdir()) / f"corellm-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    locks: dict[int, BinaryIO] = {}
    for core in sorted(os.sched_getaffinity(0)):
        if len(locks) == number:
            break
        file: BinaryIO = (folder / str(core)).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            locks[core] = file
    if len(locks) < number:
        for file in locks.values():
            file.close()
        return []
    for thread in os.listdir("/proc/self/task"):  # Ray has started some
        os.sched_setaffinity(int(thread), locks)
    return list(locks.values())
