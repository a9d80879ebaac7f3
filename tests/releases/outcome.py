"""What comes of the tests of parity and of kinds of models in an environment."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from tests.kinds.outcome import Outcome
from tests.releases.environment import Environment

_PARITY = ("tests/text_models", "extensions/recurrent", "plugins")
_PARITY_RULES = "greedy or whole or swap or recurrent"


@dataclass(frozen=True)
class Counted:
    """What came of some tests."""

    passed: int
    failed: tuple[str, ...] = ()
    """Tests or kinds, each with the reason."""

    def __str__(self) -> str:
        """Return a cell of the table."""
        return f"{self.passed} of {self.passed + len(self.failed)} pass"


def is_as_meant(environment: Environment) -> bool:
    """Whether the interpreter has the release."""
    if environment.library == "python":
        said = environment.run(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]).stdout
    else:
        said = environment.run(["-c", f"import {environment.library} as it; print(it.__version__)"]).stdout
    return said.strip().partition("+")[0] == environment.release


def parity(environment: Environment, processes: int, kernels: str) -> Counted:
    """Compare plugins and text models with transformers' `generate`, on the kernels of a CPU that are named."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        parallel = ("-n", str(processes), "--dist", "loadscope", "--no-loadscope-reorder")
        which = ("--contract-quick", *_PARITY, "-k", _PARITY_RULES)
        command = ("-m", "pytest", "-q", *parallel, *which, f"--junitxml={report}")
        said = environment.run(command, CORELLM_CPU_KERNELS=kernels)
        if not report.is_file():
            return Counted(0, (f"pytest ended with {said.returncode}: {said.stdout.strip()[-200:]}",))
        return counted(report.read_text(encoding="utf-8"))


def counted(report: str) -> Counted:
    """Return what a report of pytest in JUnit's form says."""
    passed, failed = 0, []
    for case in ElementTree.fromstring(report).iter("testcase"):
        wrong = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if wrong is not None:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            failed.append(f"{name}: {_line(wrong.get('message') or '')}")
        elif case.find("skipped") is None:
            passed += 1
    return Counted(passed, tuple(failed))


def kinds(
    environment: Environment, wanted: Sequence[str], processes: int, libraries: Path | None
) -> dict[str, Outcome]:
    """Return what comes of each kind of model, of those that the release has; all of them if none are wanted.

    Args:
        environment: where they are tried.
        wanted: model types.
        processes: how many at a time.
        libraries: a folder of those that some kinds need, made for the installed torch.
    """
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        beside = () if libraries is None else ("--libraries", str(libraries))
        command = ("-m", "tests.kinds", "--quick", f"--results={results}", f"--jobs={processes}", *beside, *wanted)
        environment.run(command)
        found: Mapping[str, Sequence[str]] = json.loads(results.read_text(encoding="utf-8"))
    return {kind: Outcome(*outcome) for kind, outcome in found.items()}


def compared(found: Mapping[str, Outcome], stated: Mapping[str, Outcome], *, with_libraries: bool) -> Counted:
    """Return how many kinds pass, and which of those that the page of kinds says to pass do not.

    Args:
        found: of a release.
        stated: what the page says, of the newest release.
        with_libraries: whether the kinds had those that some need.
    """
    passed = sum(outcome.what == "passes" for outcome in found.values())
    worse = [
        f"{kind}: {outcome.what}: {_line(outcome.why)}"
        for kind, outcome in found.items()
        if outcome.what == "fails" or (_passes(stated.get(kind), with_libraries) and outcome.what != "passes")
    ]
    return Counted(passed, tuple(worse))


def _passes(stated: Outcome | None, with_libraries: bool) -> bool:
    if stated is None or stated.what != "passes":
        return False
    return with_libraries or " with " not in stated.why.partition(";")[0]


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:200]
