"""Threads follow what the process may use, idle ones sleep, and garbage collection is paused only for a while."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from corellm.system import process

SHOW = """
import threading, time
import {first}
from corellm.system.process import set_up_threads
set_up_threads()
import torch

x = torch.ones(200_000)
x.add_(1)
begin = time.process_time()
for _ in range({operations}):
    x.add_(1)
    time.sleep(0.03)
seconds = time.process_time() - begin
print(torch.get_num_threads(), seconds, sum(thread.name == "corellm-idle" for thread in threading.enumerate()))
"""


def in_a_fresh_process(first: str, operations: int = 0, **env: str) -> tuple[int, float, int]:
    """Torch's threads, processor seconds of operations with pauses between them, and threads that were added."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))} | env
    command = [sys.executable, "-c", SHOW.format(first=first, operations=operations)]
    told = subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.split()
    return int(told[0]), float(told[1]), int(told[2])


@pytest.mark.parametrize("first", ["torch", "corellm"])
def test_idle_threads_are_told_to_sleep(first: str) -> None:
    """Whatever is imported first, by a thread that does nothing; a single thread has no other to wait for."""
    threads, _, added = in_a_fresh_process(first)
    assert threads == process.usable_cpus()
    assert added == (threads > 1)


@pytest.mark.full
@pytest.mark.parametrize("first", ["torch", "corellm"])
def test_idle_threads_sleep(first: str) -> None:
    """One that spins takes 0.01 to 0.02 seconds of processor time in each of 40 pauses."""
    _, seconds, _ = in_a_fresh_process(first, operations=40)
    assert seconds < 0.15


@pytest.mark.parametrize(
    "wish",
    [{"OMP_NUM_THREADS": "1"}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}],
    ids=str,
)
def test_the_users_wishes_stay(wish: dict[str, str]) -> None:
    """A number of threads; and where it was said how long they spin, or one has no other to wait for, none is added."""
    threads, _, added = in_a_fresh_process("torch", **wish)
    assert threads == int(wish.get("OMP_NUM_THREADS", process.usable_cpus()))
    assert not added


def test_a_number_set_after_the_first_load_stays() -> None:
    code = "import torch; from corellm.system.process import set_up_threads as s; s(); n = torch.get_num_threads();"
    code += "torch.set_num_threads(n + 1); s(); print(torch.get_num_threads() - n)"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    assert subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.parametrize(("granted", "cpus"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_a_containers_quota_counts(granted: int | None, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processors by affinity, as many of them as the container grants."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(process, "granted_cpus", lambda: granted)
    assert process.usable_cpus() == cpus


@pytest.mark.parametrize(("count", "looks"), [(200_000, 1), (1_000, 0)])
def test_many_new_objects_are_looked_at_before_the_first_request(count: int, looks: int) -> None:
    """As after imports of libraries, not after each load of a model."""
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    with process.collector_paused():
        kept = [[] for _ in range(count)]
    assert gc.get_stats()[2]["collections"] - before == looks
    assert len(kept) == count


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
