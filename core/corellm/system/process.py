"""Settings of the process: how many threads compute, that idle ones sleep, and when garbage is collected.

Two OpenMP threads that spin on one core slow every operation down a thousandfold, so the count follows what this
process may really use, and idle threads sleep soon. Imports torch only inside the functions.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from corellm.system.control_group import granted_cpus
from corellm.system.fork_safety import claim_process
from corellm.system.openmp import shorten_spinning


def usable_cpus() -> int:
    """Number of processors this process may use: by its affinity and its container's quota."""
    return min(_affinity(), granted_cpus() or _affinity())


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


_threads_set: list[bool] = []
"""Not empty after the first load: what the user sets from then on stays."""


def set_up_threads() -> None:
    """Make torch use the usable processors, and its idle threads sleep soon.

    `OMP_NUM_THREADS` stays, and so does what the user sets after this was called first.

    Raises:
        OtherProcessError: this is a fork of a process that called this; torch would wait for ever.
    """
    claim_process()
    import torch

    if not _threads_set and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(usable_cpus())
    _threads_set.append(True)
    shorten_spinning(_affinity())


_MANY_OBJECTS = 100_000
"""More than a model makes that is loaded into a process with torch and transformers."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection inside the block: it costs a quarter of the time to import torch and transformers.

    If they were imported, the block ends with one full collection. Otherwise Python would start it during the first
    requests.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _MANY_OBJECTS:
                gc.collect()
            gc.enable()
