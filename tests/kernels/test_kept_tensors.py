"""Tensors that are kept come back as they were, mapped; a file that is not whole is never taken."""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from corellm_kernels.cpu import kept_tensors
from corellm_kernels.cpu.kept_tensors import KeptTensors

LIMIT = 1 << 30


def some_tensors(seed: int = 0) -> dict[str, Tensor]:
    """Tensors of every type that is kept, one of an odd number of bytes."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(64, 32, generator=generator)
    return {
        "a.b": numbers, "half": numbers[0].bfloat16(), "bytes": (numbers[:3, :5] * 30).to(torch.int8).contiguous(),
        "none": torch.empty(0), "scale of a.b": numbers[:, 0].contiguous(),
    }  # fmt: skip


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether names, types, shapes and bits are the same."""
    return one.keys() == other.keys() and all(
        x.dtype == other[name].dtype and torch.equal(x, other[name]) for name, x in one.items()
    )


def files(folder: Path) -> list[Path]:
    """What is in a folder."""
    return sorted(folder.iterdir())


def test_they_come_back_under_their_key_and_maker(tmp_path: Path) -> None:
    first, second = some_tensors(), some_tensors(1)
    KeptTensors(tmp_path / "new" / "folder", "key", LIMIT).keep("maker", first)
    kept = KeptTensors(tmp_path / "new" / "folder", "key", LIMIT)
    assert equal(dict(kept.take("maker")), first)
    assert not kept.take("another maker")
    assert not KeptTensors(tmp_path / "new" / "folder", "another key", LIMIT).take("maker")
    kept.keep("maker", second)
    assert equal(dict(kept.take("maker")), second)
    assert len(files(tmp_path / "new" / "folder")) == 1


def test_what_is_written_to_them_stays_in_the_process(tmp_path: Path) -> None:
    kept = KeptTensors(tmp_path, "key", LIMIT)
    kept.keep("maker", some_tensors())
    taken = kept.take("maker")
    assert any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    taken["a.b"].zero_()
    assert equal(dict(kept.take("maker")), some_tensors())


def cut(data: bytes) -> bytes:
    return data[:-40]


def changed(data: bytes) -> bytes:
    """One bit of the first tensor."""
    place = 8 + int.from_bytes(data[:8], "little") + 100
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def without_a_page(data: bytes) -> bytes:
    place = 8 + int.from_bytes(data[:8], "little")
    return data[:place] + bytes(4096) + data[place + 4096 :]


def with_deep_sums(data: bytes) -> bytes:
    return save({"a": torch.ones(2)}, metadata={"sums": "[" * 100_000})


DAMAGES: list[Callable[[bytes], bytes]] = [
    cut, changed, without_a_page, with_deep_sums, lambda data: b"", lambda data: data[:3],
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_taken_and_made_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptTensors(tmp_path, "key", LIMIT)
    kept.keep("maker", some_tensors())
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert kept.take("maker") == {}
    assert f"{file} is damaged" in caplog.text
    kept.keep("maker", some_tensors())
    assert equal(dict(kept.take("maker")), some_tensors())


def test_those_used_longest_ago_make_room(tmp_path: Path) -> None:
    """Files of others stay."""
    (tmp_path / "notes.txt").write_bytes(bytes(100_000))
    (tmp_path / "x.corellm-unfinished").write_bytes(bytes(10_000))  # of a process that was killed
    for number, key in enumerate(("first", "second")):
        KeptTensors(tmp_path, key, LIMIT).keep("maker", some_tensors())
        newest = max(tmp_path.glob("*-kept"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number + 1, number + 1))
    size = newest.stat().st_size
    assert KeptTensors(tmp_path, "first", LIMIT).take("maker")  # which uses it
    KeptTensors(tmp_path, "third", 2 * size + 100).keep("maker", some_tensors())
    found = {key: bool(KeptTensors(tmp_path, key, LIMIT).take("maker")) for key in ("first", "second", "third")}
    assert found == {"first": True, "second": False, "third": True}
    assert {path.suffix for path in files(tmp_path)} == {".txt", ".corellm-kept"}


def test_while_another_process_writes_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its file stays; once it was killed, what it left goes."""
    (tmp_path / "its.corellm-unfinished").touch()
    kept = KeptTensors(tmp_path, "key", LIMIT)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    kept.keep("maker", some_tensors())
    assert [path.name for path in files(tmp_path)] == ["its.corellm-unfinished"]
    assert "another process does it" in caplog.text
    os.close(other)
    kept.keep("maker", some_tensors())
    assert [path.suffix for path in files(tmp_path)] == [".corellm-kept"]


def test_what_another_process_kept_meanwhile_is_not_written_again(tmp_path: Path) -> None:
    """Two look for it, and make it; the second one to be ready finds that of the first."""
    first, second = KeptTensors(tmp_path, "key", LIMIT), KeptTensors(tmp_path, "key", LIMIT)
    assert first.take("maker") == second.take("maker") == {}
    first.keep("maker", some_tensors())
    (before,) = (path.stat().st_ino for path in files(tmp_path))
    second.keep("maker", some_tensors())
    assert [path.stat().st_ino for path in files(tmp_path)] == [before]


def test_no_more_is_kept_than_a_share_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what would be free without these files: older ones go until that is so."""
    KeptTensors(tmp_path, "old", LIMIT).keep("maker", some_tensors())
    (old,) = files(tmp_path)
    size = old.stat().st_size
    monkeypatch.setattr(kept_tensors.shutil, "disk_usage", lambda folder: SimpleNamespace(free=size))
    KeptTensors(tmp_path, "key", LIMIT, share=0.4).keep("maker", some_tensors())
    assert files(tmp_path) == [old]
    assert f"more than 40% of the {2 * size:,} that are free" in caplog.text
    KeptTensors(tmp_path, "key", LIMIT, share=0.6).keep("maker", some_tensors())
    assert len(files(tmp_path)) == 1
    assert not old.exists()


def test_others_may_not_read_what_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    KeptTensors(folder, "key", LIMIT).keep("maker", some_tensors())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files(folder)] == [0o600]


def test_what_is_above_the_limit_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeptTensors(tmp_path, "old", LIMIT).keep("maker", some_tensors())
    KeptTensors(tmp_path, "key", 1000).keep("maker", some_tensors())
    assert "weight_cache_bytes is 1,000" in caplog.text
    assert len(files(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_only_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    kept = KeptTensors(tmp_path / "file" / "folder", "key", LIMIT)
    kept.keep("maker", some_tensors())
    assert kept.take("maker") == {}
    assert caplog.text.count("not kept") == 1


def test_files_that_other_processes_take_away_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One goes while sizes are asked for; a link to nothing is looked at like one."""
    (tmp_path / "link.corellm-kept").symlink_to(tmp_path / "nowhere")
    (tmp_path / "gone.corellm-unfinished").touch()
    lstat = Path.lstat

    def racing(path: Path) -> os.stat_result:
        if path.suffix == ".corellm-unfinished":
            path.unlink(missing_ok=True)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", racing)
    kept = KeptTensors(tmp_path, "key", LIMIT)
    kept.keep("maker", some_tensors())
    assert equal(dict(kept.take("maker")), some_tensors())


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptTensors(tmp_path, "key", LIMIT)
    kept.keep("maker", some_tensors())
    (file,) = files(tmp_path)
    file.unlink()
    file.mkdir()
    assert kept.take("maker") == {}
    assert f"{file} cannot be read" in caplog.text
    assert "damaged" not in caplog.text


def test_a_disk_that_is_full_in_the_middle_of_a_file_has_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The most that a file may have is as good as the most that a disk has."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        KeptTensors(tmp_path, "key", LIMIT).keep("maker", some_tensors())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in caplog.text
    assert files(tmp_path) == []


def test_tensors_begin_at_lines_of_the_processor(tmp_path: Path) -> None:
    kept = KeptTensors(tmp_path, "key", LIMIT)
    kept.keep("maker", {"first": torch.ones(64), "second": torch.ones(32)})
    assert all(tensor.data_ptr() % 64 == 0 for tensor in kept.take("maker").values())


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="corellm_kernels")
