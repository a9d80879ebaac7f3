"""Threads follow what the process may use, idle ones sleep, and garbage collection is paused only for a while."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from corellm.worker import process

SHOW = """
from corellm.worker.process import set_up_threads
set_up_threads()
import os, torch
print(os.environ.get("OMP_WAIT_POLICY"), torch.get_num_threads())
"""


def in_a_fresh_process(**env: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | env
    return subprocess.run(
        [sys.executable, "-c", SHOW], env=clean, capture_output=True, text=True, check=True
    ).stdout.split()


def test_waiting_threads_sleep_and_the_users_wishes_stay() -> None:
    """PASSIVE unless the user said otherwise; a number of threads the user set is kept."""
    assert in_a_fresh_process() == ["PASSIVE", str(process.usable_cpus())]
    assert in_a_fresh_process(OMP_WAIT_POLICY="ACTIVE", OMP_NUM_THREADS="1") == ["ACTIVE", "1"]


@pytest.mark.parametrize(("granted", "cpus"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_a_containers_quota_counts(granted: int | None, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processors by affinity, as many of them as the container grants."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(process, "granted_cpus", lambda: granted)
    assert process.usable_cpus() == cpus


def test_collector_comes_back() -> None:
    """Also after an error; and it stays off where it was off."""
    assert gc.isenabled()

    def fail_inside() -> None:
        with process.collector_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert gc.isenabled()
    gc.disable()
    try:
        with process.collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
