"""Runs rules of the contract on a copy of a plugin, with or without a mutant's mistake, in this process.

The copy goes first on `sys.path`, so imports find it, and so do the processes that rules start; its distribution's
metadata stay the installed one's. Torch is imported once, for all mutants.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
import torch
from PIL import Image, ImageFile

from corellm_qwen_vl import hf_oracle
from corellm_testing import ContractBroken
from extensions.testing.tests.mutants.mutant import Mutant


@dataclass
class Verdict:
    """Results of the rules that were run, by their names with parameters."""

    passed: list[str] = field(default_factory=list)
    excepted: list[str] = field(default_factory=list)
    """Rules skipped by the class's `exceptions`."""
    caught: dict[str, ContractBroken] = field(default_factory=dict)
    """Failures that say what to change."""
    crashed: dict[str, str] = field(default_factory=dict)
    """Tracebacks of rules that ended with another error."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Why rules were not run: the package is not imported, the model does not load, or the reference fails."""

    def broken(self, rule: str) -> ContractBroken | None:
        """Return the failure of a rule; without parameters, that of its first case to fail."""
        return next((broken for name, broken in self.caught.items() if rule in (name, name.partition("[")[0])), None)

    def tells(self, mutant: Mutant) -> bool:
        """Whether the first rule that broke names a hook with the mutant's mistake."""
        first = next(iter(self.caught.values()), None)
        return first is not None and not set(mutant.hooks).isdisjoint(hooks_named(first.hook))

    def __str__(self) -> str:
        """Return the verdict as the message of a failing test."""
        lines = [f"kept: {', '.join(self.passed) or 'none'}"]
        lines += [f"{rule} was caught:\n{broken}" for rule, broken in self.caught.items()]
        lines += [f"{rule} crashed:\n{trace}" for rule, trace in self.crashed.items()]
        lines += [f"{rule} was not run: {why}" for rule, why in self.not_run.items()]
        return "\n".join(lines)


def hooks_named(hook: str) -> set[str]:
    """Return the hooks that a failure's `hook` says to look at."""
    return set(re.split(", | and | or ", hook))


class Edit(Protocol):
    """Changes a copy of a plugin."""

    def apply(self, package: Path) -> None:
        """Make the change in the copy, which lies at `package`."""


def examine(
    contract: str, rules: Sequence[str], where: Path, mutant: Edit | None = None, *, first: bool = False
) -> Verdict:
    """Return the verdict of a contract class's rules.

    Args:
        contract: as `Mutant.contract`.
        rules: by name; none for all.
        where: an empty directory for the copy.
        mutant: the mistake to make first; of named rules, those after a broken one are not run.
        first: stop at the first broken rule of all.
    """
    verdict = Verdict()
    # as an author runs it, but nothing is printed, and plugins of the outer run stay out
    options = ["--disable-plugin-autoload", "--assert=plain", "--import-mode=importlib", "-W", "error"]
    options += [f"-pno:{name}" for name in ("terminal", "cacheprovider", "faulthandler", "unraisableexception")]
    options += [f"--config-file={os.devnull}", f"--rootdir={where}", f"--basetemp={where / 'temporary'}"]
    options += ["--exitfirst"] if first or (rules and mutant is not None) else []
    nodes = [f"{contract}::{rule}" for rule in rules] or [contract]
    package = contract.partition(".")[0]
    with _settings_kept(), _copied(package, where, mutant):
        try:
            importlib.import_module(package)
        except Exception as error:  # whatever the changed module does
            verdict.not_run["import"] = repr(error)
            return verdict
        status = pytest.main([*options, "--pyargs", *nodes], plugins=[_Collector(verdict)])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}; is {', '.join(rules)} a rule in {contract}?")
    return verdict


class _Collector:
    """Fills in a verdict."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._verdict.excepted.append(_rule(report))
        elif report.when == "call" and report.passed:
            self._verdict.passed.append(_rule(report))

    def pytest_exception_interact(self, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, ContractBroken):
            self._verdict.caught[_rule(report)] = error
        elif report.when == "setup":
            self._verdict.not_run[_rule(report)] = str(error)
        else:
            self._verdict.crashed[_rule(report)] = report.longreprtext


def _rule(report: pytest.TestReport) -> str:
    return report.nodeid.rpartition("::")[2]


@contextmanager
def _settings_kept() -> Iterator[None]:
    """Restore the process-wide settings that some mutants change."""
    dtype, bound, cut = torch.get_default_dtype(), Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    precision, level = torch.get_float32_matmul_precision(), logging.getLogger("transformers").level
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        logging.getLogger("transformers").setLevel(level)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = bound, cut


# --- the copy -------------------------------------------------------------------------------------------------------


@contextmanager
def _copied(package: str, where: Path, mutant: Edit | None) -> Iterator[None]:
    """Import a copy of a plugin's package in its place."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    copy = where / package
    shutil.copytree(Path(spec.origin).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "demo", "demo_video"))
    if mutant is not None:
        mutant.apply(copy)
    ours = {name: sys.modules.pop(name) for name in _modules_of(package)}
    sys.path.insert(0, str(where))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(where))
        for name in _modules_of(package):
            del sys.modules[name]
        sys.modules.update(ours)
        importlib.invalidate_caches()


def _modules_of(package: str) -> list[str]:
    """Names of a package's imported modules, without Qwen-VL's oracle: one process of it serves all copies."""
    names = [name for name in sys.modules if name == package or name.startswith(f"{package}.")]
    return [name for name in names if name != hf_oracle.__name__]
