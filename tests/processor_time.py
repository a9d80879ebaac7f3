"""Processor time of a test run, at its end: the whole, and the dearest files; no test depends on it.

Counts what the processes of pytest used between two reports of tests, with those of their children that have ended:
what no elapsed time tells on a machine that does other work.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

DEAREST = 10
_FROM = 60.0
"""Seconds of processor time from which a run is worth a summary."""

_counted = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a report the seconds since the last one; pytest-xdist carries them to the process that prints."""
    report = yield
    now = _seconds()
    report.processor_seconds = now - item.config.stash.get(_counted, now)
    item.config.stash[_counted] = now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Begin with the first test: imports and collection belong to no file."""
    session.config.stash[_counted] = _seconds()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the table."""
    used: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                used[report.nodeid.partition("::")[0]] += getattr(report, "processor_seconds", 0.0)
    whole = used.total()
    if whole < _FROM:
        return
    terminalreporter.section("processor time")
    terminalreporter.write_line(f"{whole / 60:.1f} minutes in {len(used)} files; the dearest:")
    for name, seconds in used.most_common(DEAREST):
        terminalreporter.write_line(f"{seconds:7.0f} s  {seconds / whole:4.0%}  {name}")


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
