"""Kernels are compiled where that can be done; where not, one line says why. The user chooses among them."""

from __future__ import annotations

import _ctypes
import platform
from pathlib import Path

import pytest

from corellm.errors import ConfigError
from corellm_kernels.cpu import build, library

COPY = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made by "$0" > "$2"\n'
FAIL = "#!/bin/sh\necho kernels.cpp:1: error: no vectors today >&2\nexit 1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are built."""
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    return tmp_path / "built"


def use_compiler(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> None:
    """Make a script the compiler, called by another, as with ccache."""
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("CXX", f"/bin/sh {path}")


def test_what_is_built_is_not_built_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, tmp_path / "c++", COPY)
    names = [*build.instruction_sets(platform.machine())]
    assert build.build().endswith(f" {', '.join(names)}")
    assert sorted(path.name for path in folder.iterdir()) == sorted(["version", *(f"kernels-{n}.so" for n in names)])
    assert build.is_current()
    use_compiler(monkeypatch, tmp_path / "c++", FAIL)
    assert "up to date" in build.build()
    (folder / "version").write_text("of other sources", encoding="ascii")
    assert not build.is_current()
    assert "no vectors today" in build.build()
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [("/bin/no-such-compiler", "No such file or directory"), ("/bin/sh {}", "error: no vectors today")],
)
def test_a_compiler_that_fails(
    command: str, reason: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, tmp_path / "c++", FAIL)
    monkeypatch.setenv("CXX", command.format(tmp_path / "c++"))
    line = build.build()
    assert f"{command.format(tmp_path / 'c++')} failed" in line
    assert reason in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("command", "reason"),
    [("false", "ended with 1"), ("true", "ended with 0"), ('g++ "', "No closing quotation")],
)
def test_a_compiler_that_says_nothing(command: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", command)
    line = build.build()
    assert f"{command} failed" in line
    assert reason in line
    assert not build.is_current()


def test_what_could_not_be_built_is_named_and_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "instruction_sets", lambda machine: {"newest": ["-mnewest"], "plain": []})
    picky = f'case "$*" in *-mnewest*) echo error: newest? >&2; exit 1;; esac\n{COPY}'
    use_compiler(monkeypatch, tmp_path / "c++", picky)
    first = build.build()
    assert " plain; " in first
    assert first.endswith(" newest: error: newest?")
    assert build.is_current()
    use_compiler(monkeypatch, tmp_path / "c++", COPY)
    assert build.build().endswith(" newest, plain")
    assert "up to date" in build.build()


def test_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "(g++, clang++ or $CXX)" in build.build()
    assert not folder.exists()


def load(monkeypatch: pytest.MonkeyPatch, wanted: str) -> str:
    """Load the library that the variable names; return its path."""
    monkeypatch.setenv("CORELLM_CPU_KERNELS", wanted)
    path: str = library._library.__wrapped__()._name
    return path


@pytest.mark.parametrize("wanted", ["plain", str(build.library_path("plain"))])
def test_the_user_chooses(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, wanted) == str(build.library_path("plain"))


def test_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="CORELLM_CPU_KERNELS is off"):
        load(monkeypatch, "off")


def test_the_user_wants_what_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"CORELLM_CPU_KERNELS='avx1024' .*off, .*plain"):
        load(monkeypatch, "avx1024")
    (tmp_path / "other.so").write_text("no library", encoding="ascii")
    for path in (str(tmp_path / "other.so"), _ctypes.__file__):  # no library, and one of others
        with pytest.raises(ConfigError, match="CORELLM_CPU_KERNELS='"):
            load(monkeypatch, path)
    monkeypatch.setitem(library.ARGUMENTS, "norm", library.Call)
    with pytest.raises(ConfigError, match="norm for Call"):
        load(monkeypatch, str(build.library_path("plain")))
    monkeypatch.undo()
    monkeypatch.setattr(library, "library_path", lambda name: Path("/no/such/library.so"))
    with pytest.raises(ConfigError, match="CORELLM_CPU_KERNELS='plain': not built"):
        load(monkeypatch, "plain")
    with pytest.raises(OSError, match="not built"):
        load(monkeypatch, "")
    monkeypatch.setattr(library, "is_current", lambda: False)
    with pytest.raises(OSError, match=r"corellm_kernels.cpu.build .*g\+\+ or clang"):
        load(monkeypatch, "")
