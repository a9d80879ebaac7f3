"""Torch's idle threads sleep soon, in whatever order things were imported.

GNU's OpenMP library, which torch's wheels for Linux bring, has an idle thread spin 300,000 times before it sleeps.
Where another process wants its processor, each operation of a model then waits for the end of a time slice. The count
is read when the library is loaded, which is when torch is imported. But where there are more threads than processors,
threads spin 100 times only (the library's manual says so, under GOMP_SPINCOUNT): two or more are made that do nothing.
To sleep at once, as OMP_WAIT_POLICY=PASSIVE has it, is slower than this on a machine with nothing else to do.
"""

from __future__ import annotations

import os
import threading
from functools import cache


@cache
def shorten_spinning(processors: int) -> None:
    """Have OpenMP's threads spin for microseconds, not milliseconds, unless the user has decided how long.

    Args:
        processors: that the library counts, by this process's affinity.
    """
    import torch

    num_threads = torch.get_num_threads()
    if num_threads == 1 or "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        return
    # a team counts without the thread that leads it: teams of `num_threads` and of these are one thread too many
    idle = max(0, processors - num_threads) + 2
    made = threading.Event()

    def lead_idle_team() -> None:
        torch.set_num_threads(idle)
        torch.ones(100_000)  # large enough to be divided, which makes the team
        torch.set_num_threads(num_threads)  # for threads that begin later, too
        made.set()
        threading.Event().wait()  # a team ends with its leader

    threading.Thread(target=lead_idle_team, name="corellm-idle", daemon=True).start()
    made.wait()
