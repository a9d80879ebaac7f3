"""Random forms, right and wrong, sent to `corellm serve`: each gets a 200 or a 400 in time, and harms no other request.

    python -m extensions.structured.tests.proof.hostile --cases 2000 --seed 0

A case is made of the seed and its number alone, so that it can be sent again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from tqdm import tqdm

from corellm_llava.tiny import make_tiny_checkpoint
from extensions.server.tests.command import Command, command
from extensions.server.tests.conftest import MODEL
from extensions.structured.tests.proof.schemas import form

COMPLETE = "/v1/completions"
MOST_SECONDS = 30.0
"""That a case may take, on a machine that is busy: a check is ended after four seconds, and may wait for others."""
MOST_GROWTH = 300 << 20
"""Bytes by which a process may grow after a fifth of the cases: each keeps forms that it has seen."""
_AT_ONCE = 2


@dataclass
class Report:
    """What was seen."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    """Seconds, and the number of the case."""
    canary: float = 0.0
    """The longest that a request of no form took beside them."""
    growth: int = 0
    """Bytes by which the processes grew after the first fifth."""


def body(seed: int, number: int) -> dict[str, Any]:
    """The request of a case."""
    rng = Random(f"{seed} {number}")
    asked = form(rng)
    sampling = {"temperature": 1.0, "seed": number, "max_tokens": rng.choice([1, 8, 32]), "stream": rng.random() < 0.2}
    return {"model": MODEL, "prompt": "yes", "structured_outputs": asked, **sampling}


def encoded(request: dict[str, Any]) -> bytes:
    """A request as bytes; lone surrogates are escaped."""
    return json.dumps(request).encode()


def send(running: Command, report: Report, seed: int, number: int) -> None:
    """Send a case and judge its response."""
    request = body(seed, number)
    began = time.monotonic()
    response = running.http.post(COMPLETE, content=encoded(request), headers={"Content-Type": "application/json"})
    seconds = time.monotonic() - began
    case = f"seed {seed}, case {number}, {seconds:.1f} s: {response.text[:500]} {json.dumps(request)[:2000]}"
    assert response.status_code in (200, 400), case
    assert seconds < MOST_SECONDS, case
    told = "taken"
    if response.status_code == 400:
        error = response.json()["error"]
        assert len(error["message"]) <= 1000, case
        told = "refused"
        assert str(error["param"]).startswith("structured_outputs") or error["code"] == "invalid_json", case
    elif '"error"' in response.text:  # of a stream that had begun: following the form took too much
        told = "ended"
        assert '"code": 500' not in response.text and "internal error" not in response.text, case  # noqa: PT018
    report.counts[f"{next(iter(request['structured_outputs']))}, {told}"] += 1
    report.slowest = max(report.slowest, (seconds, number))


def canary(running: Command) -> str:
    """The output of a request that has no form."""
    request = {"model": MODEL, "prompt": "How many?", "temperature": 0, "max_tokens": 8}
    response = running.http.post(COMPLETE, json=request)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def memory(running: Command) -> dict[str, int]:
    """Resident bytes: of the API process, of the engine's, and of the largest that checks forms."""
    api = psutil.Process(running.process.pid)
    sizes = {"api": api.memory_info().rss, "engine": psutil.Process(running.engine).memory_info().rss}
    others = [_resident(child) for child in api.children(recursive=True) if child.pid != running.engine]
    return {**sizes, "checking": max(others, default=0)}


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def run(model: Path, folder: Path, seed: int, cases: int, *, show: bool = False) -> Report:
    """Send all cases, two at once, while a canary asks again and again.

    Raises:
        AssertionError: a response is wrong or late, the canary's output changed, a process grew, or erred.
    """
    report, done = Report(), threading.Event()
    with (
        command(model, folder) as running,
        tqdm(total=cases, disable=not show) as bar,
        ThreadPoolExecutor(4) as threads,
    ):
        want, engine = canary(running), running.engine

        def sing() -> None:
            while not done.wait(0.1):
                began = time.monotonic()
                assert canary(running) == want
                report.canary = max(report.canary, time.monotonic() - began)

        def work(first: int) -> None:
            for number in range(first, cases, _AT_ONCE):
                send(running, report, seed, number)
                bar.update()
                if number == cases // 5:
                    begun.update(memory(running))

        begun: dict[str, int] = {}
        singing = threads.submit(sing)
        try:
            for working in [threads.submit(work, first) for first in range(_AT_ONCE)]:
                working.result()
        finally:
            done.set()
        singing.result()
        now = memory(running)
        report.growth = max(now[name] - begun[name] for name in ("api", "engine"))
        assert report.growth < MOST_GROWTH, (begun, now)
        assert running.engine == engine
        assert canary(running) == want
    log = (folder / "stderr").read_text()
    assert "internal error" not in log, log[-5000:]
    assert "Traceback" not in log, log[-5000:]
    assert report.counts.total() == cases
    return report


def main() -> int:
    """Run it and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = run(make_tiny_checkpoint(Path(name, "model")), Path(name), args.seed, args.cases, show=True)
    print("\n".join(f"{kind:24}{count:>6}" for kind, count in sorted(report.counts.items())))
    print(f"slowest: {report.slowest[0]:.1f} s, case {report.slowest[1]}; a request beside them: {report.canary:.1f} s")
    print(f"the server's processes grew by {report.growth >> 20} MiB after a fifth of the cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
