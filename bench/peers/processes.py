"""Processes of one engine: run in a session of their own, counted together, and killed together.

Engines start processes, and some leave them behind when they end. All processes of a session and all their
descendants belong together. Knows Linux's /proc, nothing of engines.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    is_dead: bool
    cpu_seconds: float
    """Processor time of the process and of children that ended and that it waited for."""


def members(session: int) -> dict[int, _Process]:
    """The living processes of a session, and their descendants in other ones."""
    everything = [process for process in map(_read, _pids()) if process is not None]
    found = {process.pid: process for process in everything if process.session == session}
    while more := [p for p in everything if p.parent in found and p.pid not in found]:
        found |= {process.pid: process for process in more}
    return {pid: process for pid, process in found.items() if not process.is_dead}


def cpu_seconds(session: int) -> float:
    """Processor time of a session's processes, in user and kernel mode."""
    return sum(process.cpu_seconds for process in members(session).values())


def memory(session: int) -> int:
    """Bytes of a session's processes; what several share counts once (PSS)."""
    total = 0
    for pid in members(session):
        with contextlib.suppress(OSError):  # it ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def kill_session(session: int, seconds: float = 10.0) -> int:
    """Kill all processes of a session; returns how many there were.

    Raises:
        TimeoutError: some are still there after some seconds.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while left := members(session):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(left)} could not be killed within {seconds:g} s")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= set(left)
        time.sleep(0.02)
    return len(killed)


def run(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> str | None:
    """Run a command in a session of its own; whatever happens, none of its processes is left.

    Returns:
        Why it failed; None if it did not.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"stopped at its time limit of {seconds:g} s"
        finally:
            kill_session(process.pid)
            process.wait()
    return None if code == 0 else f"ended with {code}: {first_error(log)}"


def first_error(log: Path) -> str:
    """The line of a log that says most: the first that ends a traceback, because others follow from it; or the last."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if error := re.search(r"^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception): .*)$", text, re.MULTILINE):
        return error[1][:300]
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it wrote nothing"])[-1][:300]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it ended
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return _Process(pid, int(fields[1]), int(fields[3]), fields[0] in "ZX", ticks / _TICKS)
