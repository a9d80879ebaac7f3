"""The user's folder of what can be made again, and whether large files there may be mapped without being asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from corellm.errors import ConfigError

_MOUNTS = Path("/proc/self/mountinfo")
_IN_MEMORY = ("tmpfs", "ramfs")
_ON_NETWORKS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "smb3", "smbfs", "wekafs",
)  # fmt: skip
_FUSE_ON_DISKS = ("fuseblk", "fuse.fuse-overlayfs")
"""File systems of programs (FUSE) that are on disks; most others are of a network or of an object store."""


def cache_folder(kind: str) -> Path:
    """Return where files of a kind are kept: in `$XDG_CACHE_HOME/corellm`, or `~/.cache/corellm`.

    A path in that variable that is relative does not count, as its specification says.

    Raises:
        ConfigError: the user has no home.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(cache if os.path.isabs(cache) else Path.home() / ".cache") / "corellm" / kind
    except RuntimeError as error:
        raise ConfigError("this user has no home directory; set XDG_CACHE_HOME to one for caches") from error


def against_mapping(folder: Path) -> str | None:
    """Return what speaks against large files in a folder, which may not exist yet; None for nothing.

    Files in memory take it from the process; those of a network may be deleted by another machine while they are
    mapped, which ends the process; and those of a folder that others may write to, or replace, can be anything.
    """
    if os.path.isdir(folder):
        status = folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "it belongs to another user, or others may write to it"
    if os.path.isdir(folder.parent):  # the user's own group often may write to what this user makes
        status = folder.parent.stat()
        is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or is_open:
            return f"{folder.parent} belongs to another user, or all may write to it"
    system = _file_system(folder)
    if system in _IN_MEMORY:
        return f"it is in memory ({system})"
    if system in _ON_NETWORKS:
        return f"it is on a network ({system})"
    may_be = system is not None and system.startswith("fuse") and system not in _FUSE_ON_DISKS
    return f"it may be on a network ({system})" if may_be else None


def _file_system(path: Path) -> str | None:
    """Return the type of the file system that a path is in, or would be; None where the system does not tell."""
    here = next(place for place in (path, *path.parents, Path()) if place.exists())
    device = here.stat().st_dev
    try:
        mounts = _MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return None
    for line in mounts.splitlines():  # proc(5): number, parent, device, ..., "-", type, ...
        before, _, after = line.partition(" - ")
        if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return after.split()[0]
    return None
