"""W5: a server, corellm's or a peer's, under the load of `corellm_server.loadgen`. Runs in corellm's environment.

The first load after the start is cold, later ones are warm. The server is in this process's session, which the main
process kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

from bench.peers.worker import Figures, Job
from corellm_server.loadgen.load import run_load
from corellm_server.loadgen.report import summarize
from corellm_server.loadgen.settings import LoadSettings

_START_SECONDS = 240


def main(job: Job) -> None:
    """Start, load, write."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # a peer's own variables hold for the server only
    environment = {**os.environ, **job.options["environment"]}
    command = [word.format(model=job.model, port=port, dtype=job.dtype) for word in job.options["command"]]
    with subprocess.Popen(command, env=environment) as server:
        url = f"http://127.0.0.1:{port}"
        _wait(server, f"{url}/health")
        figures = Figures()
        settings = LoadSettings(
            url, rate=job.plan.rate, num=job.plan.requests, images=1, image_size=(640, 480), prompt_words=12,
            max_tokens=job.plan.tokens, extra_body={"ignore_eos": True},
        )  # fmt: skip
        for batch in range(1 + job.plan.batches):
            _load(replace(settings, seed=batch), figures, job.threads)
        Path(job.out).write_text(json.dumps(figures.as_record()), encoding="utf-8")
        server.kill()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode} while it started")
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"the server was not healthy after {_START_SECONDS} s")


def _load(settings: LoadSettings, figures: Figures, threads: int) -> None:
    with figures.watched(threads):
        _, results = asyncio.run(run_load(settings, lambda _: None))
    found = summarize(settings, results)
    if found["errors"]:
        raise RuntimeError(f"requests failed: {found['errors']}")
    figures.add("first token, ms", found["ttft_ms"]["p50"])
    figures.add("first token, p99 ms", found["ttft_ms"]["p99"])
    figures.add("between tokens, ms", found["tpot_ms"]["p50"])


if __name__ == "__main__":
    import sys

    main(Job.from_json(sys.argv[1]))
