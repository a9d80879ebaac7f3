"""Make torch's idle threads sleep soon, also if torch is imported already.

In GNU's OpenMP library, which torch's wheels for Linux contain, an idle thread spins 300,000 times before it sleeps. If
another process wants its processor, each operation of a model then waits for the end of a time slice. The library reads
the count when torch is imported. But with more threads than processors, threads spin only 100 times (the library's
manual, under GOMP_SPINCOUNT): this file starts two or more threads that do nothing.
Sleeping at once (OMP_WAIT_POLICY=PASSIVE) is slower than this on an idle machine.
"""

from __future__ import annotations

import os
import threading
from functools import cache


@cache
def shorten_spinning(processors: int) -> None:
    """Make OpenMP's threads spin for microseconds, not milliseconds, unless the user set how long.

    Args:
        processors: number of them in this process's affinity, as the library counts.
    """
    import torch

    num_threads = torch.get_num_threads()
    if num_threads == 1 or "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        return
    # a team is counted without its leader: teams of `num_threads` and of `idle` make one thread too many
    idle = max(0, processors - num_threads) + 2
    made = threading.Event()

    def lead_idle_team() -> None:
        torch.set_num_threads(idle)
        torch.ones(100_000)  # large enough to run in parallel, which starts the team
        torch.set_num_threads(num_threads)  # also for threads that start later
        made.set()
        threading.Event().wait()  # a team ends with its leader

    threading.Thread(target=lead_idle_team, name="corellm-idle", daemon=True).start()
    made.wait()
