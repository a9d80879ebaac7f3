"""`pytest tests/kernels` on this machine's device, counted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from bench.gpu.jobs import has_module
from bench.gpu.settings import Settings
from bench.gpu.source_tree import ROOT

PART = "tests"
_SPARE = 4.0
"""Seconds left for the counting."""


def run(settings: Settings) -> None:
    """Run the tests and record how many of each outcome there were, and which failed.

    Warnings are errors where the project's own versions are installed, not here. Tests share the device, which is
    quicker: most of the time goes into compiling.
    """
    missing = [name for name in ("pytest", "hypothesis") if not has_module(name)]
    if missing:
        settings.records.note(PART, "kernel tests", f"not run: {' and '.join(missing)} not installed")
        return
    junit = Path(settings.scratch) / "junit.xml"
    what = (
        ["tests/kernels/test_merging.py"]
        if settings.quick
        else ["tests/kernels", "--ignore=tests/kernels/test_ahead.py"]
    )
    command = [
        sys.executable, "-m", "pytest", *what, "-v", "-W", "default", "-p", "no:cacheprovider", "-p", "no:benchmark",
        "--tb=short", f"--junitxml={junit}",
    ]  # fmt: skip
    if has_module("xdist") and not settings.quick:
        command += ["-n", "8", "--dist", "load"]
    log = Path(settings.out) / "tests.log"
    start = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait(timeout=max(1.0, settings.seconds_left() - _SPARE))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    counts, failed = _from_junit(junit) if junit.exists() else _from_log(log)
    settings.records.figure(
        PART, "kernel tests", **counts, seconds=time.perf_counter() - start, complete=str(junit.exists()), names=failed
    )
    if failed or not junit.exists():
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-60:]
        what_failed = f"{len(failed)} tests fail: {', '.join(failed)[:240]}" if failed else "the tests did not end"
        settings.records.failure(PART, "kernel tests", what_failed, "\n".join(last))


def _from_junit(file: Path) -> tuple[dict[str, int], list[str]]:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed = []
    for case in ElementTree.parse(file).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failed.append(str(case.get("name")))
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts, failed


def _from_log(file: Path) -> tuple[dict[str, int], list[str]]:
    """Of tests that were stopped: what had been told by then."""
    told = {"passed": set[str](), "failed": set[str](), "skipped": set[str]()}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        names = [word for word in line.split() if "::" in word]
        for outcome, tests in told.items():
            if names and f" {outcome.upper()}" in f" {line}":
                tests.add(names[0])
    return {outcome: len(tests) for outcome, tests in told.items()}, sorted(told["failed"])
