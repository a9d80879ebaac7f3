"""What a warm process forks is like what a fresh interpreter starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_process import WarmProcess, fork_modules

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm processes need Linux")

SHOWN = """
import json, os, signal, subprocess, sys
command = open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").split(b"\\0")
if sys.argv[1:] == ["inner"]:
    print("inner, a child of", os.getppid())
    sys.exit(4)
inner = subprocess.run([sys.executable, "-m", "shown", "inner"], stdout=subprocess.PIPE, text=True)
print(json.dumps({
    "argv": sys.argv, "command": list(map(bytes.decode, command)), "folder": os.getcwd(), "path": sys.path[0],
    "variables": sorted(os.environ.items()), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
    "interrupt": str(signal.getsignal(signal.SIGINT)), "read": sys.stdin.read(), "name": __name__,
    "given": os.read(int(sys.argv[1]), 9).decode(), "inner": inner.stdout == f"inner, a child of {os.getpid()}\\n",
    "ended": inner.returncode, "imported": "wave" in sys.modules,
}))
print("an error", file=sys.stderr)
sys.exit(3)
"""


def started(folder: Path, *, alone: bool) -> tuple[str, str, int]:
    """What the module says, and its exit status."""
    given, end = os.pipe()
    os.write(end, b"given")
    os.close(end)
    command = [sys.executable, *(["-P"] if alone else []), "-m", "shown", str(given)]
    try:
        done = subprocess.run(
            command, input="read", text=True, capture_output=True, pass_fds=[given], start_new_session=alone,
            cwd=folder, env={**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    finally:
        os.close(given)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("alone", [True, False])
def test_it_is_as_if_it_were_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Arguments, environment, folder, descriptors, parent, exit status, a child of its own; but imports are there."""
    (tmp_path / "shown.py").write_text(SHOWN)
    monkeypatch.setattr(subprocess.Popen, "_execute_child", subprocess.Popen._execute_child)  # to be put back
    fresh = started(tmp_path, alone=alone)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    warm = WarmProcess(["wave"], environment, {"shown": ["shown"]})
    fork_modules({"shown": warm})
    try:
        said, error, status = started(tmp_path, alone=alone)
    finally:
        warm.close()
    assert fresh[0].count('"imported": false') == 1
    assert (said.replace('"imported": true', '"imported": false'), error, status) == fresh
    assert said != fresh[0]


ENDS = """
import atexit, os, sys, threading
atexit.register(print, "at exit")
threading.Timer(0.1, print, ["a thread"]).start()
print("no line", end="")
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(259)", "sys.exit('why')", "raise ValueError('why')", "os._exit(5)"])
def test_it_ends_as_if_it_were_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """It waits for its threads, does what is to be done at exit, writes what was printed, and has its status."""
    (tmp_path / "ends.py").write_text(ENDS + end)
    monkeypatch.setattr(subprocess.Popen, "_execute_child", subprocess.Popen._execute_child)  # to be put back

    def ended() -> tuple[str, list[str], int]:
        done = subprocess.run([sys.executable, "-m", "ends"], cwd=tmp_path, text=True, capture_output=True)
        return done.stdout, done.stderr.splitlines()[-1:], done.returncode

    fresh = ended()
    warm = WarmProcess(["wave"])
    fork_modules({"ends": warm})
    try:
        assert ended() == fresh
    finally:
        warm.close()


IMPORTED = """
import os, sys
print(*(name in sys.modules for name in ("wave", "colorsys")), os.getppid())
"""
CODE = """
import os, socket, subprocess, sys
from tests.warm_process import HANDED, WarmProcess, fork_modules
asked = socket.socket(fileno=int(os.environ.pop(HANDED)))
copy = WarmProcess((), dict(os.environ), asked=asked)
fork_modules({"imported": copy})
print(sys.argv, __name__, *(name in sys.modules for name in ("wave", "colorsys")))
inner = subprocess.run([sys.executable, "-m", "imported"], stdout=subprocess.PIPE, text=True)
print(inner.stdout == f"True True {os.getpid()}\\n")
sys.exit(3)
"""


def test_code_has_a_copy_to_fork_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the imports of the warm process, and its copy imports more; what the copy forks is the code's child."""
    (tmp_path / "imported.py").write_text(IMPORTED)
    monkeypatch.setattr(subprocess.Popen, "_execute_child", subprocess.Popen._execute_child)  # to be put back
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    warm = WarmProcess(["wave"], environment, copy_imports=["colorsys"])
    fork_modules({CODE: warm})
    try:
        command = [sys.executable, "-u", "-c", CODE, "given"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    finally:
        warm.close()
    assert (done.stdout, done.returncode) == ("['-c', 'given'] __main__ True False\nTrue\n", 3)


def test_a_run_of_pytest_within_a_test_leaves_what_was_there(pytester: pytest.Pytester) -> None:
    """Else processes that are started after it would be forked from warm ones that nobody ends."""
    pytester.makepyfile("import subprocess\ndef test_one():\n    assert subprocess.Popen._execute_child.__closure__")
    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    pytester.runpytest_inprocess("-p", "tests.warm_starts", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert subprocess.Popen._execute_child is before  # type: ignore[attr-defined]
