"""Limits of this process's container on processors and memory, from Linux control groups of version 1 or 2.

A limit holds for a group and all groups below it, so the tightest from the process's own group up to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def granted_cpus() -> int | None:
    """Number of whole processors, at least one; None without a quota."""
    quotas = []
    for group in _groups("cpu"):
        stated = _read(group / "cpu.max") or f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        quota, _, period = stated.partition(" ")
        if quota.isdecimal() and period.isdecimal():  # others are "max" and -1: no quota
            quotas.append(max(1, int(quota) // int(period)))
    return min(quotas, default=None)


def free_memory() -> int | None:
    """Bytes left below the tightest limit, counting inactive file cache as free; None without a limit."""
    free = []
    for group in _groups("memory"):
        for limit, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            bound, usage = _read(group / limit), _read(group / used)
            if bound.isdecimal() and usage.isdecimal():  # another bound is "max"
                statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
                free.append(max(0, int(bound) - int(usage) + int(statistics.get(cached, 0))))
    return min(free, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield the directories of the groups that limit this process, from its own up to the root.

    In a container only the root exists: the process's group has the name it has on the host.
    """
    for line in _read(_MEMBERSHIP).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _MOUNTED / controller if controllers else _MOUNTED
        parts = PurePosixPath(name).parts[1:]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth])


def _read(file: Path) -> str:
    """Return a file's text without its final line end; empty if there is no such file."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
