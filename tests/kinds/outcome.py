"""What comes of one kind of model: it passes, is refused at load with a reason, or cannot be tried here.

Run as `python -m tests.kinds.outcome ARCHITECTURE`, it makes the tiny checkpoint and loads it, and prints the outcome.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("kind.py")
_MARK = "outcome of "
_ABSENT = re.compile(r"(torchvision|torchaudio|timm|mistral-common|num2words|pytesseract)", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """A line of the page."""

    what: str
    """`passes`, `refused`, `needs` a library, `no checkpoint`, or `fails`."""
    why: str = ""


def outcome_of(architecture: str, seconds: int) -> Outcome:
    """Return what comes of an architecture; processes of their own try it, for at most `seconds` each."""
    loaded = _run(["-m", "tests.kinds.outcome", architecture], architecture, seconds)
    if loaded is None:
        return Outcome("no checkpoint", f"not made and loaded within {seconds} seconds")
    marked = [line.removeprefix(_MARK) for line in loaded.stdout.splitlines() if line.startswith(_MARK)]
    if not marked:
        return Outcome("no checkpoint", f"the process ended with {loaded.returncode}")
    what, _, why = marked[-1].partition(": ")
    if what != "loads":
        return Outcome(what, why)
    tested = _run(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(RULES)], architecture, 4 * seconds)
    if tested is None:
        return Outcome("fails", f"not tested within {4 * seconds} seconds")
    if tested.returncode == 0:
        return Outcome("passes")
    said = re.findall(r"^ *(?:got|E) +(.*)", tested.stdout, re.MULTILINE)
    return Outcome("fails", said[0][:200] if said else tested.stdout.strip()[-200:])


def _run(command: list[str], architecture: str, seconds: int) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "CORELLM_KIND": architecture, "HF_HUB_OFFLINE": "1"}
    try:
        return subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None


def _load(architecture: str) -> Outcome:
    from corellm import LLM
    from corellm.errors import CheckpointError
    from corellm_transformers.tiny import make_tiny_checkpoint

    with TemporaryDirectory() as folder:
        try:
            make_tiny_checkpoint(folder, architecture=architecture)
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            absent = _ABSENT.search(said)
            return Outcome("needs", absent[1].lower()) if absent else Outcome("no checkpoint", said[:200])
        try:
            LLM(folder, dtype="float32").close()
        except CheckpointError as error:
            return Outcome("refused", " ".join(str(error).replace(folder, "the checkpoint").split()))
    return Outcome("loads")


if __name__ == "__main__":
    found = _load(sys.argv[1])
    print(f"\n{_MARK}{found.what}: {found.why}", flush=True)
    os._exit(0)  # some libraries' threads do not end
