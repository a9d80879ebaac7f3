"""A container's limits are found in the kernel's files of both versions, wherever in the hierarchy they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from corellm.system import control_group
from corellm.system.memory import DeviceMemory

GIB = 2**30
UNLIMITED = 9223372036854771712
"""What version 1 states for no limit."""


def lay_out(root: Path, membership: str, files: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put up files as the kernel does, and have them read."""
    for name, content in {"proc": membership, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    monkeypatch.setattr(control_group, "_MEMBERSHIP", root / "proc")
    monkeypatch.setattr(control_group, "_MOUNTED", root)


VERSION_1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc"


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "max 100000"}, 3),
        (VERSION_1, {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, None),
        (VERSION_1, {"cpu/cpu.cfs_quota_us": 400000, "cpu/cpu.cfs_period_us": 100000}, 4),
        (VERSION_1, {"cpu/docker/abc/cpu.cfs_quota_us": 150000, "cpu/docker/abc/cpu.cfs_period_us": 50000}, 3),
    ],
)
def test_processors(
    membership: str, files: dict[str, object], cpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, membership, files, monkeypatch)
    assert control_group.granted_cpus() == cpus


def memory(group: str, limit: object, used: object, cached: object = 0) -> dict[str, object]:
    """A group of version 2."""
    return {
        f"{group}memory.max": limit,
        f"{group}memory.current": used,
        f"{group}memory.stat": f"anon 1\ninactive_file {cached}\nactive_file 7",
    }


def old_memory(group: str, limit: object, used: object, cached: object = 0) -> dict[str, object]:
    """A group of version 1."""
    return {
        f"memory/{group}memory.limit_in_bytes": limit,
        f"memory/{group}memory.usage_in_bytes": used,
        f"memory/{group}memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
    }


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        ("", {}, None),
        ("0::/", memory("", "max", 5 * GIB), None),
        ("0::/", memory("", 4 * GIB, 3 * GIB), GIB),
        ("0::/", memory("", 4 * GIB, 3 * GIB, cached=2 * GIB), 3 * GIB),
        ("0::/", memory("", GIB, 2 * GIB), 0),
        ("0::/pod/app", memory("pod/app/", 8 * GIB, GIB) | memory("pod/", 6 * GIB, 4 * GIB), 2 * GIB),
        ("0::/outside/name", memory("", 4 * GIB, GIB), 3 * GIB),
        (VERSION_1, old_memory("", UNLIMITED, GIB) | old_memory("docker/abc/", 2 * GIB, GIB, GIB // 2), GIB * 3 // 2),
        (VERSION_1, old_memory("", 3 * GIB, GIB), 2 * GIB),
    ],
)
def test_memory(
    membership: str, files: dict[str, object], free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory is that of the tightest group, with the cached files that can be dropped."""
    lay_out(tmp_path, membership, files, monkeypatch)
    assert control_group.free_memory() == free


def test_the_default_cache_fits_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the machine has; and a limit above that changes nothing."""
    machine = DeviceMemory(torch.device("cpu"), 0.9)
    lay_out(tmp_path, "0::/", memory("", 3 * 2**20, 2**20), monkeypatch)
    assert machine.left_for_blocks() == int(0.4 * 2 * 2**20)
    lay_out(tmp_path, "0::/", memory("", UNLIMITED, 0), monkeypatch)
    assert 2 * 2**20 < machine.left_for_blocks() < UNLIMITED // 1000
