"""What a container grants this process: whole processors, and memory; by control groups of version 2 or 1.

A limit holds for a group and all below it, so that the tightest one from the process's own group up to the root counts.
Knows the kernel's files, and no other limits than theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def granted_cpus() -> int | None:
    """Whole processors, at least one; None without a quota."""
    quotas = []
    for group in _groups("cpu"):
        stated = _read(group / "cpu.max") or f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        quota, _, period = stated.partition(" ")
        if quota.isdecimal() and period.isdecimal():  # others are "max" and -1: no quota
            quotas.append(max(1, int(quota) // int(period)))
    return min(quotas, default=None)


def free_memory() -> int | None:
    """Bytes until the tightest limit, counting cached files that are not in use as free; None without a limit."""
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
    """Directories of the groups that bound this process, from its own up to the root.

    In a container its own group is the root, though its name may be that of outside, and is not found then.
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
    """A file of the kernel's without the last line's end; empty where there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
