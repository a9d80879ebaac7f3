"""What is run in which process, in which order, and for how long: a process that hangs or crashes takes nobody along.

Each job is a process with a time limit. Those of a group run side by side: nothing in them is timed. What a process
says goes to the terminal, its warnings and tracebacks to `log.txt`.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from bench.gpu.settings import Settings

PARTS = ("ceilings", "tests", "kernels", "engine", "workloads")
MODELS = ("7b", "1b")
DECODED = ("bf16", "int8", "fp8")
"""Caches of paged decode attention; the first is asked for, the others are measured if there is time."""
_LEAST = 10.0
"""Seconds without which a job is not begun."""
_GRACE = 5.0
"""Seconds between a process's own stop and its end by force."""


@dataclass(frozen=True)
class Job:
    """Work for one process.

    Several pieces in one process save the time to import torch; on a GPU each has its own.
    """

    part: str
    seconds: float
    """The most that it may take."""
    pieces: tuple[tuple[str, ...], ...]
    """Each a module, a function of it, and what it is called with beside the settings."""

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(" ".join((module, *args)) for module, _, *args in self.pieces)


def groups(parts: Sequence[str], models: Sequence[str], *, quick: bool) -> list[list[Job]]:
    """Everything there is to do; what others need is always among it."""
    needs_models = "engine" in parts or "workloads" in parts
    checkpoints = [Job("checkpoints", 100, (("checkpoints", "make", *sorted(models)),))] if needs_models else []
    tests = [Job("tests", 95, (("kernel_tests", "run"),))] if "tests" in parts else []
    kernels = "kernels" in parts
    attention = [
        Job("kernels", 60, (("decode_kernel", "measure", *(DECODED if quick else DECODED[:1])),)),
        Job("kernels", 45, (("prefill_kernel", "measure"),)),
    ]
    others = [
        Job(
            "kernels",
            60,
            (("row_kernels", "measure"), ("sampling_kernel", "measure"), ("mixed_kernel", "measure")),
        ),
        Job("kernels", 60, (("decode_kernel", "measure", *DECODED[1:]),)),
    ]
    on_models = []
    for model in models if needs_models else ():
        on_models.append(Job("engine", 140 if model == "7b" else 100, (("served", "measure", model, *parts),)))
        if "workloads" in parts:
            on_models.append(Job("workloads", 100 if model == "7b" else 75, (("baselines", "measure", model),)))
    in_turn = [*(attention if kernels else []), *on_models, *(others if kernels else [])]
    ceilings = Job("ceilings", 60, (("ceilings", "measure"),))
    if quick:
        alone = [ceilings, *checkpoints, *(job for job in in_turn if job is not others[1])]
        return [[Job("quick", 240, tuple(piece for job in alone for piece in job.pieces)), *tests]]
    side = [*checkpoints, *tests]
    return [[ceilings], *([side] if side else []), *([job] for job in in_turn)]


def run_group(jobs: Sequence[Job], settings: Settings) -> None:
    """Run jobs side by side, each until its limit; what goes wrong is recorded."""
    started: list[tuple[Job, subprocess.Popen[bytes], Settings, int]] = []
    log = Path(settings.out) / "log.txt"
    try:
        for job in jobs:
            seconds = min(job.seconds, settings.seconds_left())
            if seconds < _LEAST:
                settings.records.note(job.part, job.name, "not begun, time is up")
                continue
            settings.records.say(f"--- {job.name} (at most {seconds:.0f} s)")
            own = replace(settings, deadline=time.monotonic() + seconds)
            before = log.stat().st_size if log.exists() else 0
            started.append((job, _start(job, own, log), own, before))
        for job, process, own, before in started:
            _wait(job, process, own, log, before)
    finally:
        for _, process, _, _ in started:
            _kill(process)


def _start(job: Job, settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    """A process group of its own, so that what it starts ends with it."""
    pieces = [" ".join(piece) for piece in job.pieces]
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--job", settings.dumps(), *pieces]
    with log.open("ab") as errors:
        return subprocess.Popen(command, stderr=errors, start_new_session=True)


def _wait(job: Job, process: subprocess.Popen[bytes], settings: Settings, log: Path, before: int) -> None:
    try:
        code = process.wait(timeout=max(0.0, settings.seconds_left()) + _GRACE)
    except subprocess.TimeoutExpired:
        _kill(process)
        code = process.wait()
    if code:
        with log.open("rb") as file:
            file.seek(before)
            said = file.read().decode("utf-8", "replace").strip().splitlines()[-40:]
        late = settings.seconds_left() < 1.0
        why = "stopped at its time limit" if late else f"ended with {code}: {said[-1] if said else 'nothing said'}"
        settings.records.failure(job.part, job.name, why, "\n".join(said))


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


# --- in the process ---------------------------------------------------------------------------------------------------


def run_pieces(settings: Settings, pieces: Sequence[str]) -> None:
    """What a job's process does; where it was when its time was up is in the log."""
    faulthandler.dump_traceback_later(max(1.0, settings.seconds_left()), exit=True)
    for piece in pieces:
        module, function, *args = piece.split()
        with settings.records.guard(module, piece):
            work: Callable[..., None] = getattr(import_module(f"bench.gpu.{module}"), function)
            work(settings, *args)
    faulthandler.cancel_dump_traceback_later()


def environment(python_path: str, *, device: str) -> dict[str, str]:
    """What processes are told beside the settings: where modules are, and that nobody downloads or draws bars."""
    told = {
        "PYTHONPATH": python_path,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
    }
    return told if device == "cuda" else {**told, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def has_module(name: str) -> bool:
    """Whether a module is installed here."""
    return importlib.util.find_spec(name) is not None
