"""The table of processor time names the files that used it."""

from __future__ import annotations

import pytest

from tests import processor_time

BUSY = """
import os

def used():
    times = os.times()
    return times.user + times.system

def test_busy():
    until = used() + {seconds}
    while used() < until:
        pass
"""
CHILD = """
import subprocess, sys

def test_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
"""


def test_files_are_listed_by_what_they_used(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own and that of processes that they started, whatever else the machine does meanwhile."""
    pytester.makepyfile(test_much=BUSY.format(seconds=0.3), test_little=BUSY.format(seconds=0.05), test_child=CHILD)
    monkeypatch.setattr(processor_time, "_FROM", 0.0)
    result = pytester.runpytest_inprocess("-p", "tests.processor_time", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    (first,) = [i for i, line in enumerate(result.outlines) if "minutes in 3 files" in line]
    assert [line.split()[-1] for line in result.outlines[first + 1 : first + 4]] == [
        "test_child.py", "test_much.py", "test_little.py",
    ]  # fmt: skip


def test_a_short_run_has_no_table(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_inprocess("-p", "tests.processor_time", "-p", "no:cacheprovider")
    assert "processor time" not in result.stdout.str()
