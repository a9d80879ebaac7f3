"""Prints the table of mutants below the test results: a pytest hook, imported by the conftest."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each mutant, the rule that caught it, and the beginning of its message."""
    passed = sorted(terminalreporter.getreports("passed"), key=lambda report: report.nodeid.rpartition("::")[0])
    properties = [dict(report.user_properties) for report in passed]
    mutants = [found["mutant"] for found in properties if "mutant" in found]
    if not mutants:
        return
    terminalreporter.section("mutants: the mistake, the rule that caught it, and what it said")
    for family, wrong, rule, hook, expected, got in mutants:
        terminalreporter.line(f"{family:<11} {wrong:<58} {rule}")
        said = f"{_short(hook, 40)}: expected {_short(expected, 70)}; got {_short(got, 70)}"
        terminalreporter.line(f"{'':<11} {said}")
    rules = {rule.partition("[")[0] for _, _, rule, *_ in mutants}
    terminalreporter.line(f"{len(mutants)} mutants, all caught, by {len(rules)} rules")


def _short(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
