"""Runs everything: prepares checkpoints, then each workload on each side in a process of its own, round after round.

Knows processes and files; what is measured within a process is in `worker`, what becomes of it in `summary`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from bench.peers import checkpoints, floor
from bench.peers.environments import Environment, process_variables, python_of
from bench.peers.forms import Maker
from bench.peers.processes import run
from bench.peers.results import Measurement, Results
from bench.peers.sides import SIDES, Side
from bench.peers.sizes import SIZES
from bench.peers.worker import Job
from bench.peers.workloads import Plan, plan_of, requests_of, text_request

_ITEMSIZES = {"float32": 4, "bfloat16": 2}
_MACHINE_SECONDS = 120


@dataclass(frozen=True)
class Settings:
    """What is run."""

    rounds: int
    sides: tuple[str, ...]
    workloads: tuple[str, ...]
    sizes: tuple[str, ...]
    dtype: str
    quick: bool
    threads: int
    cache: Path
    out: Path
    timeout: float
    """Seconds that one process may take."""


class Progress(Protocol):
    """Shown while it runs."""

    def doing(self, what: str) -> None:
        """What runs now."""

    def done(self, what: str, problem: str | None) -> None:
        """A process has ended."""


@dataclass(frozen=True)
class Turn:
    """One process to run."""

    round: int
    size: str
    workload: str
    side: str

    def __str__(self) -> str:
        return f"round {self.round + 1}: {self.size} {self.workload} {self.side}"


def turns(settings: Settings) -> Iterator[Turn]:
    """All processes; sides take turns, so that what disturbs the machine disturbs all of them."""
    for number in range(settings.rounds):
        for size in settings.sizes:
            for workload in settings.workloads:
                for side in settings.sides:
                    if workload in SIDES[side].workloads:
                        yield Turn(number, size, workload, side)


class Benchmark:
    """One run; `results` has everything so far, and is written after each process."""

    def __init__(self, settings: Settings, progress: Progress, variables: Mapping[str, Any]) -> None:
        self._settings, self._progress = settings, progress
        self.results = Results(dict(variables))
        self._logs = settings.out / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._file = settings.out / "peers.json"
        self._unusable: dict[tuple[str, str], str] = {}
        """Why a side has no model of a size."""

    def run(self) -> None:
        """Prepare, then measure all."""
        self._prepare()
        for turn in turns(self._settings):
            if turn.round == len(self.results.machine):
                self._measure_machine()
            self._progress.doing(str(turn))
            measurement = self._measure(turn)
            self.results.measurements.append(measurement)
            self.results.write(self._file)
            self._progress.done(str(turn), measurement.failure)

    def _prepare(self) -> None:
        """Write the checkpoints, and what sides need of them in another form."""
        for size in self._settings.sizes:
            self._progress.doing(f"checkpoint {size}")
            checkpoints.checkpoint(self._settings.cache / "checkpoints", size, self._settings.dtype)
            maker = Maker(
                self._folder(size), self._settings.dtype, self._settings.threads, self._settings.cache,
                self._logs / f"forms-{size}.txt", self._progress.doing,
            )  # fmt: skip
            for name in self._settings.sides:
                if problem := maker.make(SIDES[name].form):
                    self._unusable[name, size] = problem

    def _folder(self, size: str) -> Path:
        """Where a checkpoint and what is made of it are."""
        return self._settings.cache / "checkpoints" / f"{size}-{self._settings.dtype}"

    def _model(self, size: str, side: Side) -> Path:
        """Where a side's form of a checkpoint is."""
        return self._folder(size) / side.form

    def _environment(self, side: Side) -> Environment | None:
        return Environment.of(side.environment, self._settings.cache) if side.environment else None

    def _measure_machine(self) -> None:
        self._progress.doing("bandwidth and matrix rate of this machine")
        settings, file = self._settings, self._settings.out / "machine.json"
        arguments = [settings.dtype, str(settings.threads), str(file)]
        variables = process_variables(settings.threads, None)
        problem = run(
            [python_of(None), "-m", "bench.peers.machine", *arguments], variables, self._logs / "machine.txt",
            _MACHINE_SECONDS,
        )  # fmt: skip
        if problem:
            raise RuntimeError(f"this machine's rates could not be measured: {problem}")
        self.results.machine.append(json.loads(file.read_text(encoding="utf-8")))
        file.unlink()

    def _measure(self, turn: Turn) -> Measurement:
        side, empty = SIDES[turn.side], Measurement(turn.round, turn.size, turn.workload, turn.side)
        environment = self._environment(side)
        problem = environment.missing if environment else None
        problem = problem or self._unusable.get((turn.side, turn.size))
        if problem:
            return replace(empty, failure=problem)
        out = self._settings.out / "figures.json"
        out.unlink(missing_ok=True)
        plan = plan_of(turn.size, turn.workload, quick=self._settings.quick)
        problem = self._run_process(turn, side, environment, plan, out)
        if problem is None and not out.exists():
            problem = "ended without figures"
        if problem:
            return replace(empty, failure=problem)
        record = json.loads(out.read_text(encoding="utf-8"))
        out.unlink()
        return replace(empty, **record, best=self._best(turn, plan))

    def _run_process(
        self, turn: Turn, side: Side, environment: Environment | None, plan: Plan, out: Path
    ) -> str | None:
        settings = self._settings
        model, variables = self._model(turn.size, side), process_variables(settings.threads, environment)
        job = Job(
            side.engine, turn.workload, SIZES[turn.size].family, plan, str(model), settings.dtype, settings.threads,
            str(out), time.monotonic(), dict(side.options),
        )  # fmt: skip
        python, module = python_of(environment), "bench.peers.worker"
        if turn.workload == "W5":  # the server runs in the peer's environment, its clients in corellm's
            options = {"command": [python, *side.serve], "environment": variables}
            job = replace(job, options=options)
            python, module, variables = python_of(None), "bench.peers.server", process_variables(settings.threads, None)
        log = self._logs / f"{turn.size}-{turn.workload}-{turn.side.replace(', ', '-')}-{turn.round + 1}.txt"
        return run([python, "-m", module, job.to_json()], variables, log, settings.timeout)

    def _best(self, turn: Turn, plan: Plan) -> dict[str, float]:
        """The figures at the floor, of the first batch's prompts; those of others are about as long."""
        size = SIZES[turn.size]
        length = checkpoints.prompt_length(self._model(turn.size, SIDES["corellm"]), size)
        if turn.workload in ("W5", "W6"):
            return {}
        requests = requests_of(size.family, turn.workload, plan, 0)
        if turn.workload == "W4":
            requests = [requests[0], text_request(size.family, 0)]
        lengths = [length(request.text) for request in requests]
        if turn.workload == "W3":
            shared = _common_start([request.text for request in requests])
            plan = replace(plan, shared_tokens=length(shared))
        rates = self.results.machine[turn.round]
        machine = floor.Machine(rates["bytes_per_s"], rates["flops_per_s"])
        bits = SIDES[turn.side].bits
        itemsize = _ITEMSIZES[self._settings.dtype] if bits == 16 else bits / 8
        return floor.best_figures(size, turn.workload, plan, lengths, machine, itemsize)


def _common_start(texts: list[str]) -> str:
    """The longest text that all begin with."""
    first, last = min(texts), max(texts)
    count = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:count]
