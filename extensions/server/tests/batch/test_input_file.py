"""Lines of the input: which are requests, and what is told of the others."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from corellm.errors import ConfigError
from corellm_server.batch.input_file import BatchRequest, InputError, InputFile
from extensions.server.tests.batch.conftest import CHAT, line, written


def read(path: Path, data: bytes, max_body_bytes: int = 1 << 20) -> list[BatchRequest]:
    path.write_bytes(data)
    with InputFile(path, max_body_bytes) as file:
        found = list(file.requests())
        assert list(file.requests()) == found  # also custom_ids that are there twice
    return found


@pytest.mark.parametrize(
    ("bad", "custom_id", "message"),
    [
        ("{", None, "not JSON"),
        ('{"custom_id": "b", "method": "POST", "body": {"x": NaN}}', None, "not JSON"),
        ('{"custom_id": "\\ud800"}', None, "not JSON"),
        ('{"a": ' * 100_000, None, "not JSON"),
        ("[]", None, "must be an object"),
        ("{}", None, "custom_id"),
        (line(7, {}), None, "custom_id"),
        (line("", {}), None, "custom_id"),
        (line("x" * 513, {}), None, "custom_id"),
        (line("a", {}), None, "of line 1"),
        (line("b", {}, method="GET"), "b", "method"),
        (line("b", {}, method=["x"]), "b", "method"),
        (line("b", {}, url="https://example.org/v1/chat/completions"), "b", "url"),
        (line("b", {}, url=None), "b", "url"),
        ('{"custom_id": "b", "method": "POST", "url": "/"}', "b", "body"),
        (line("b", "text"), "b", "body"),
        (line("b", None), "b", "body"),
        (line("b", {"stream": True}), "b", "stream"),
    ],
)  # fmt: skip
def test_bad_lines(tmp_path: Path, bad: str, custom_id: str | None, message: str) -> None:
    """Each is told by its number; the lines around it are requests."""
    data = "\n".join([line("a", {}), bad, line("c", {})]).encode()
    before, wrong, after = read(tmp_path / "in", data)
    assert (before.custom_id, before.wrong, after.custom_id, after.wrong) == ("a", None, "c", None)
    assert (wrong.line, wrong.custom_id) == (2, custom_id)
    assert wrong.wrong is not None
    assert message in wrong.wrong
    assert len(wrong.wrong) < 200


def test_a_body_is_kept_as_it_is(tmp_path: Path) -> None:
    """Byte for byte, whatever the ends of lines, marks at the beginning, empty lines and fields of others."""
    body = '{"temperature" : 1.0e0,\t"x": "\\u00e9é", "stream": false}'
    one = f'{{"custom_id": "é", "method": "POST", "url": "{CHAT}", "priority": 1, "body": {body} }}'
    data = b"\xef\xbb\xbf\r\n  \n" + one.encode() + b"\r\n\n\t\n" + line("z", {"stream": None}).encode()
    first, last = read(tmp_path / "in", data)
    assert first == BatchRequest(3, "é", CHAT, body.encode())
    assert (last.line, last.custom_id, last.body) == (6, "z", b'{"stream": null}')
    assert read(tmp_path / "empty", b"\n\n") == []


def test_a_line_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    """It is told, the next one is found, and no more than a MiB of it is ever read at once."""
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.write(line("a", {}).encode() + b"\n" + b"x" * (1 << 25) + b"\n" + line("b", {}).encode() + b"\n")
        file.write(b"y" * (1 << 25))  # also where the file ends within it
    with InputFile(path, 1 << 16) as opened:
        reads: list[int] = []
        readline = opened._file.readline
        counted = SimpleNamespace(
            seek=opened._file.seek, readline=lambda most: (line := readline(most), reads.append(len(line)))[0]
        )
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(opened, "_file", counted)
            told = [(request.line, request.custom_id, request.wrong) for request in opened.requests()]
    assert max(reads) == 1 << 20
    assert sum(reads) == path.stat().st_size
    assert [(number, custom_id) for number, custom_id, _ in told] == [(1, "a"), (2, None), (3, "b"), (4, None)]
    too_long = told[1][2]
    assert too_long is not None
    assert "131072 bytes" in too_long
    assert [wrong for _, _, wrong in told] == [None, too_long, None, too_long]


def test_what_is_no_file(tmp_path: Path) -> None:
    """A path that is absent, a directory or a pipe is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("absent", "No such file"), (".", "not a file"), ("pipe", "no pipe")):
        with pytest.raises(ConfigError, match=message):
            InputFile(tmp_path / name, 1)


def test_a_full_temporary_directory(tmp_path: Path) -> None:
    """The custom_ids are kept in a temporary file; the error says so."""
    path = written(tmp_path / "in", (line(f"{i:0500}", {}) for i in range(100)))
    with InputFile(path, 1 << 20) as file:
        file._ids.execute("PRAGMA max_page_count = 3")
        with pytest.raises(InputError, match="TMPDIR"):
            list(file.requests())
