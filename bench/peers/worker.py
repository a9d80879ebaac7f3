"""One process: one workload on one engine. `python -m bench.peers.worker JOB` writes the figures as JSON.

The main process starts it with the engine's own Python, in a session of its own. Needs numpy, Pillow and the engine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from bench.peers.processes import cpu_seconds, memory
from bench.peers.workloads import Plan, Request, asked_again, requests_of, text_request

START_OF_OUTPUT = 12
"""Characters of each output that are compared between engines."""
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """What a process is told."""

    engine: str
    """Module of `bench.peers.engines`."""
    workload: str
    family: str
    plan: Plan
    model: str
    """Directory of the checkpoint, or of what was exported from it."""
    dtype: str
    threads: int
    out: str
    """File for the figures."""
    started: float
    """When the process was started, of `time.monotonic()`, which all processes share."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the engine."""

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """From a command line."""
        values = json.loads(text)
        return cls(**values | {"plan": Plan(**values["plan"])})


class Engine(Protocol):
    """A loaded model; outputs are greedy and exactly as long as asked."""

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        """Outputs of requests that are all there at once."""

    def stream(self, request: Request, tokens: int) -> list[float]:
        """When each token of one request was there, of `time.monotonic()`."""


@dataclass
class Figures:
    """The first value of each figure, which is cold, and the later ones, which are warm."""

    values: dict[str, list[float]] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    """How the outputs of the first batch begin."""

    def add(self, name: str, value: float) -> None:
        """One more value."""
        self.values.setdefault(name, []).append(value)

    def as_record(self) -> dict[str, Any]:
        """Cold values and medians of the warm ones; None where there are none."""
        pairs = {name: cold_and_warm(values) for name, values in self.values.items()}
        busy = pairs.pop("busy", {"cold": None, "warm": None})
        return {"figures": pairs, "busy": busy, "starts": self.starts}

    @contextmanager
    def watched(self, threads: int) -> Iterator[list[float]]:
        """Note which share of the cores is busy within; the list gets the seconds."""
        session, seconds = os.getsid(0), list[float]()
        busy, start = cpu_seconds(session), time.monotonic()
        yield seconds
        seconds.append(time.monotonic() - start)
        self.add("busy", (cpu_seconds(session) - busy) / seconds[0] / threads)


def cold_and_warm(values: list[float]) -> dict[str, float | None]:
    """The first value, and the median of the others."""
    return {"cold": values[0], "warm": statistics.median(values[1:]) if values[1:] else None}


def measure(engine: Engine, job: Job) -> Figures:
    """The figures of a workload."""
    figures = Figures()
    {
        "W1": _together, "W2": _together, "W3": _questions, "W4": _alone, "W6": _from_start, "W7": _images,
    }[job.workload](engine, job, figures)  # fmt: skip
    return figures


def _together(engine: Engine, job: Job, figures: Figures) -> None:
    for batch in range(1 + job.plan.batches):
        requests = requests_of(job.family, job.workload, job.plan, batch)
        with figures.watched(job.threads) as seconds:
            outputs = engine.generate(requests, job.plan.tokens)
        figures.add("tokens/s", len(requests) * job.plan.tokens / seconds[0])
        figures.starts = figures.starts or [output.strip()[:START_OF_OUTPUT] for output in outputs]


def _questions(engine: Engine, job: Job, figures: Figures) -> None:
    for batch in range(1 + job.plan.batches):
        questions = requests_of(job.family, job.workload, job.plan, batch)
        with figures.watched(job.threads) as seconds:
            outputs = [engine.generate([question], job.plan.tokens)[0] for question in questions]
        figures.add("s per question", seconds[0] / len(questions))
        figures.starts = figures.starts or [output.strip()[:START_OF_OUTPUT] for output in outputs]


def _alone(engine: Engine, job: Job, figures: Figures) -> None:
    """Measure requests one by one, those with an image first: the first text is cold in what only text needs."""
    images = requests_of(job.family, job.workload, job.plan, 0)
    texts = [text_request(job.family, batch) for batch in range(len(images))]
    for kind, requests in (("image", images), ("text", texts)):
        for request in requests:
            with figures.watched(job.threads):
                start = time.monotonic()
                times = engine.stream(request, job.plan.tokens)
            figures.add(f"{kind}: first token, ms", 1e3 * (times[0] - start))
            figures.add(f"{kind}: between tokens, ms", 1e3 * (times[-1] - times[0]) / (job.plan.tokens - 1))


def _from_start(engine: Engine, job: Job, figures: Figures) -> None:
    requests = requests_of(job.family, job.workload, job.plan, 0)
    figures.add("start to first token, s", engine.stream(requests[0], 1)[0] - job.started)
    for batch in (requests[:1], requests):
        engine.generate(batch, job.plan.tokens)
        time.sleep(_SETTLE_SECONDS)
        figures.add("idle memory, MB", memory(os.getsid(0)) / 1e6)


def _images(engine: Engine, job: Job, figures: Figures) -> None:
    for batch in range(1 + job.plan.batches):
        requests = requests_of(job.family, job.workload, job.plan, batch)
        for name, some in (("new", requests), ("repeated", asked_again(job.family, requests))):
            with figures.watched(job.threads) as seconds:
                engine.generate(some, job.plan.tokens)
            figures.add(f"{name} images/s", len(some) / seconds[0])


def main() -> None:
    """Load the engine, measure, write."""
    job = Job.from_json(sys.argv[1])
    engine: Engine = import_module(f"bench.peers.engines.{job.engine}").load(job)
    record = measure(engine, job).as_record()
    Path(job.out).write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main()
