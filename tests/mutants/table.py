"""The table of mutants, below the test results: a hook of pytest's, for the conftest that every run loads."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Each mutant, the rule that caught it, and how its message begins."""
    passed = sorted(terminalreporter.getreports("passed"), key=lambda report: report.nodeid.rpartition("::")[0])
    properties = [dict(report.user_properties) for report in passed]
    rows = [found["mutant"] for found in properties if "mutant" in found]
    if not rows:
        return
    terminalreporter.section("mutants: the mistake, the rule that caught it, and what it said")
    for family, wrong, rule, hook, expected, got in rows:
        terminalreporter.line(f"{family:<11} {wrong:<58} {rule}")
        said = f"{_short(hook, 40)}: expected {_short(expected, 70)}; got {_short(got, 70)}"
        terminalreporter.line(f"{'':<11} {said}")
    rules = {rule.partition("[")[0] for _, _, rule, *_ in rows}
    terminalreporter.line(f"{len(rows)} mutants, all caught, by {len(rules)} rules")


def _short(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
