"""The user's cache: where it is, and where large files may be mapped without being asked for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from corellm.errors import ConfigError
from corellm.system import cache_folder as cache
from corellm.system.cache_folder import against_mapping, cache_folder


def test_it_is_in_the_home_unless_a_variable_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("weights") == tmp_path / "corellm" / "weights"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder("weights") == tmp_path / ".cache" / "corellm" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("weights") == tmp_path / ".cache" / "corellm" / "weights"


def test_a_user_without_a_home_is_told_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a number that has no name."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # raises what the system raises
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        cache_folder("weights")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("ext4", None),
        ("overlay", None),
        ("fuseblk", None),
        ("fuse.fuse-overlayfs", None),
        (None, None),
        ("tmpfs", "in memory (tmpfs)"),
        ("nfs4", "on a network (nfs4)"),
        ("fuse.s3fs", "may be on a network (fuse.s3fs)"),
    ],
)
def test_neither_memory_nor_a_network(
    kind: str | None, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file system of the nearest folder that is there; also where the system tells none."""
    device = tmp_path.stat().st_dev
    lines = [
        "22 1 999:7 / /elsewhere rw,relatime - nfs4 server:/ rw",
        f"23 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - {kind} /dev/vda rw",
    ]
    (tmp_path / "mountinfo").write_text("\n".join(lines if kind else lines[:1]))
    monkeypatch.setattr(cache, "_MOUNTS", tmp_path / "mountinfo")
    found = against_mapping(tmp_path / "not" / "yet")
    assert found is None if reason is None else found is not None and reason in found
    monkeypatch.setattr(cache, "_MOUNTS", tmp_path / "absent")
    assert against_mapping(tmp_path / "not" / "yet") is None


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOUNTS", tmp_path / "absent")
    (tmp_path / "folder").mkdir(mode=0o700)
    assert against_mapping(tmp_path / "folder") is None
    (tmp_path / "folder").chmod(0o770)
    assert "others may write to it" in str(against_mapping(tmp_path / "folder"))
    (tmp_path / "folder").chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert "belongs to another user" in str(against_mapping(tmp_path / "folder"))


def test_a_folder_that_others_may_replace_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOUNTS", tmp_path / "absent")
    above = tmp_path / "corellm"
    above.mkdir()
    for mode, is_used in ((0o777, False), (0o1777, True), (0o775, True), (0o755, True)):
        above.chmod(mode)
        assert (against_mapping(above / "weights") is None) == is_used, oct(mode)
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_uid=12345, st_mode=stat(path).st_mode))
    assert f"{above} belongs to another user" in str(against_mapping(above / "weights"))
