"""What comes of one kind of model: it passes, is refused at load with a reason, or cannot be tried here.

Run as `python -m tests.kinds.outcome ARCHITECTURE`, it makes the tiny checkpoint and loads it, and prints the outcome.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("kind.py")
_MARK = "outcome of "
_WAY_OUT = re.compile(
    r"; (?:this architecture needs a plugin of its own, whose \w+ says it, or )?"
    r"run th(?:e|is) checkpoint with transformers' own (?:generate|code)$"
)
"""What all errors end with; the page says it once."""
_ABSENT = re.compile(r"(torchvision|torchaudio|timm|mistral.?common|num2words|pytesseract)", re.IGNORECASE)


_QUICK = "greedy_equals and 16-prefix"
_OPTIONS = ("-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
"""Warnings are those of transformers about itself."""


@dataclass(frozen=True)
class Outcome:
    """A line of the page."""

    what: str
    """`passes`, `refused`, `needs` a library, `no checkpoint`, `not tested`, or `fails`."""
    why: str = ""
    """The reason; of one that passes, its modalities, and `with` the library that some of them need."""


def outcome_of(architecture: str, seconds: int, libraries: Path | None = None, *, quick: bool = False) -> Outcome:
    """Return what comes of an architecture; processes of their own try it.

    Args:
        architecture: a class of transformers.
        seconds: the most for making and loading a checkpoint; the rules may take five times as long.
        libraries: a folder of those that a kind may need, or by which it takes videos.
        quick: try one setting.
    """
    without = _outcome_of(architecture, seconds, None, quick=quick)
    if libraries is None or without.what not in ("passes", "needs", "refused"):
        return without
    known = without.why if without.what == "passes" else ""
    outcome = _outcome_of(architecture, seconds, libraries, passed=known, quick=quick)
    if without.what == outcome.what == "refused":
        return without
    if outcome.what != "passes" or outcome.why == known:
        return outcome
    if without.what != "passes":
        library = without.why if without.what == "needs" else "torchvision"  # whose absence some processors do not say
        return Outcome("passes", f"{outcome.why} with {library}")
    modalities, _, note = outcome.why.partition(" (")
    more = [modality for modality in modalities.split(", ") if modality not in known.split(", ")]
    return Outcome("passes", f"{known}; {', '.join(more)} with torchvision{note and f' ({note}'}")


def passing(architectures: Sequence[str], seconds: int, processes: int) -> frozenset[str]:
    """Return those that pass one setting, tried in one run: to start a process for each takes longer than most rules.

    Args:
        architectures: classes of transformers.
        seconds: the most for each.
        processes: how many at a time.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        parallel = ["-n", str(processes), "--dist", "loadscope"]
        command = ["-m", "pytest", "-q", *parallel, *_OPTIONS, "-k", _QUICK, f"--junitxml={report}", str(RULES)]
        _run(command, ",".join(architectures), seconds * len(architectures), None)
        if not report.is_file():
            return frozenset()
        cases = [*ElementTree.parse(report).iter("testcase")]
    passed = {case.get("classname", "").rpartition(".Test")[2] for case in cases if not len(case)}
    return frozenset(passed & {*architectures})


def _outcome_of(
    architecture: str, seconds: int, libraries: Path | None, *, passed: str = "", quick: bool = False
) -> Outcome:
    """Return what comes of an architecture, if it passes its modalities; with those `passed`, no rule is tried."""
    loaded = _run(["-m", "tests.kinds.outcome", architecture], architecture, seconds, libraries)
    if loaded is None:
        return Outcome("no checkpoint", f"not made and loaded within {seconds} seconds")
    marked = [line.removeprefix(_MARK) for line in loaded.stdout.splitlines() if line.startswith(_MARK)]
    if not marked:
        return Outcome("no checkpoint", f"the process ended with {loaded.returncode}")
    what, _, why = marked[-1].partition(": ")
    if what != "loads":
        return Outcome(what, why)
    outcome = Outcome("passes") if why == passed else _tested(architecture, seconds, libraries, quick)
    return Outcome("passes", why) if outcome.what == "passes" else outcome


def _tested(architecture: str, seconds: int, libraries: Path | None, quick: bool) -> Outcome:
    which = ("-k", _QUICK) if quick else ()
    tested = _run(["-m", "pytest", "-q", *_OPTIONS, *which, str(RULES)], architecture, 5 * seconds, libraries)
    if tested is None:
        return Outcome("not tested", f"not within {5 * seconds} seconds")
    if tested.returncode == 0:
        return Outcome("passes")
    said = re.findall(r"^(?:E )? *got +(.*)|^E +(.*)", tested.stdout, re.MULTILINE)
    failed = re.findall(r"^(?:FAILED|ERROR) .*::(\S+)", tested.stdout, re.MULTILINE)
    why = "".join(said[0])[:200] if said else tested.stdout.strip()[-200:]
    return Outcome("fails", f"{', '.join(failed)}: {why}")


def _run(
    command: list[str], architecture: str, seconds: int, libraries: Path | None
) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "CORELLM_KIND": architecture, "HF_HUB_OFFLINE": "1"}
    if libraries is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(libraries), os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None


def _load(architecture: str) -> Outcome:
    from corellm import LLM
    from corellm.errors import CheckpointError, PluginNotFoundError
    from corellm_transformers.tiny import make_tiny_checkpoint

    with TemporaryDirectory() as folder:
        try:
            make_tiny_checkpoint(folder, architecture=architecture)
        except Exception as error:
            if isinstance(error, CheckpointError):
                return _needs(error) or Outcome("refused", _said(error))
            return _needs(error) or Outcome("no checkpoint", f"{type(error).__name__}: {_said(error)[:200]}")
        try:
            with LLM(folder, dtype="float32") as llm:
                modalities = ", ".join(llm.engine.input_processor.mm_processor.limits)
                pairs = llm.engine.context.findings.get("apart", ())
                apart = [f"{second} not beside {first}" for first, second in pairs]
                modalities += f" ({', '.join(apart)})" if apart else ""
        except (CheckpointError, PluginNotFoundError) as error:
            reason = _said(error).replace(folder, "the checkpoint").partition("; install ")[0]
            return _needs(error) or Outcome("refused", _WAY_OUT.sub("", reason))
    return Outcome("loads", modalities)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _needs(error: Exception) -> Outcome | None:
    """Return the outcome that a library is absent, if an error says so."""
    absent = _ABSENT.search(_said(error))
    return Outcome("needs", absent[1].lower().replace("_", "-")) if absent else None


if __name__ == "__main__":
    found = _load(sys.argv[1])
    print(f"\n{_MARK}{found.what}: {found.why}", flush=True)
    os._exit(0)  # some libraries' threads do not end
