"""The output: whole lines after every kind of end, and files of others left as they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from corellm.errors import ConfigError
from corellm_server.batch.input_file import BatchRequest
from corellm_server.batch.output_file import OutputError, OutputFile
from corellm_server.batch.results import of_wrong_line

LINES = [of_wrong_line(BatchRequest(number, f"r{number}", wrong="é" * 50)).line for number in (1, 2, 3)]


def ids_in(path: Path) -> list[str | None]:
    with OutputFile(path) as file:
        return [result.custom_id for result in file.results()]


def test_every_torn_line_is_cut_off(tmp_path: Path) -> None:
    """Wherever a process was killed while it wrote a line, the lines before it are kept, and writing goes on."""
    path = tmp_path / "out"
    for cut in range(len(LINES[1])):
        path.write_bytes(LINES[0] + LINES[1][:cut])
        with OutputFile(path) as file:
            assert [result.custom_id for result in file.results()] == ["r1"]
            file.append(LINES[2])
        assert path.read_bytes() == LINES[0] + LINES[2]


@pytest.mark.parametrize(
    "other", [b"my notes", b"my notes\n", LINES[0] + b"x", LINES[0] + b"\n" + LINES[1], b'{"id":"x"}\n', b"\xff" * 9]
)
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, other: bytes) -> None:
    """It is refused, with the line."""
    path = tmp_path / "out"
    path.write_bytes(other)
    with pytest.raises(ConfigError, match=rf"line {1 + other.startswith(LINES[0])} of "):
        ids_in(path)
    assert path.read_bytes() == other


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half line that fitted is cut off; with space again, writing goes on."""
    path, write = tmp_path / "out", os.write
    room = len(LINES[0]) + 20

    def limited(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = write(descriptor, data[:room])
        room -= num_written
        return num_written

    monkeypatch.setattr("corellm_server.batch.output_file.os.write", limited)
    with OutputFile(path) as file:
        file.append(LINES[0])
        with pytest.raises(OutputError, match="out: No space left"):
            file.append(LINES[1])
        assert path.read_bytes() == LINES[0]
        room = 1 << 20
        file.append(LINES[1])
    assert ids_in(path) == ["r1", "r2"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A directory, a device, a path without its folder, and a file that another process writes."""
    for path, message in ((tmp_path, "not a file"), (Path("/dev/full"), "not a file"), (tmp_path / "a/b", "No such")):
        with pytest.raises(ConfigError, match=message):
            OutputFile(path)
    with OutputFile(tmp_path / "out"), pytest.raises(ConfigError, match="another process"):
        OutputFile(tmp_path / "out")
    with OutputFile(tmp_path / "out"):
        pass
