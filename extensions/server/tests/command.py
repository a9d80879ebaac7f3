"""`corellm serve` as users run it: a process with children. Knows nothing of what tests ask it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from extensions.server.tests.conftest import chat, user
from tests.engine.process.test_process_faults import exists

CHAT = "/v1/chat/completions"


def children(pid: int) -> set[int]:
    """Child processes that run, of any of its threads."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            found |= {int(child) for child in (thread / "children").read_text().split()}
        except FileNotFoundError:
            continue  # the thread ended
    return {child for child in found if exists(child)}


def cmdline(pid: int) -> bytes:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@dataclass
class Command:
    """A running `corellm serve`."""

    process: subprocess.Popen[str]
    http: httpx.Client
    log: Path
    """What it wrote to its standard error."""

    @property
    def engine(self) -> int:
        """Id of the engine's process."""
        (pid,) = (pid for pid in children(self.process.pid) if b"engine_main" in cmdline(pid))
        return pid

    def metric(self, name: str) -> float:
        """What a metric is now; values of several labels are added."""
        text = self.http.get("/metrics").text
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))

    def text_of(self, *content: Any) -> str:
        """The output of a conversation."""
        response = self.http.post(CHAT, json=chat(user(*content)))
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])


def starting(model: Path, folder: Path, **options: Any) -> list[str]:
    """The command line that serves a model, or `models`, with a configuration file that is written into the folder."""
    config = folder / "server.yaml"
    only = {} if "models" in options else {"model": str(model), "served-model-name": "tiny"}
    given = {**only, "port": 0, "dtype": "float32", **options}
    config.write_text("".join(f"{name}: {value}\n" for name, value in given.items()))
    return [sys.executable, "-m", "corellm", "serve", "--config", str(config), "--log-format", "json"]


@contextmanager
def command(
    model: Path, folder: Path, environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator[Command]:
    """Run the command; all that it started is gone at the end."""
    started, log = starting(model, folder, **options), folder / "stderr"
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    with (
        open(log, "w") as stderr,
        subprocess.Popen(started, stdout=subprocess.PIPE, stderr=stderr, text=True, env=variables) as process,
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert " at " in said, log.read_text()
            with httpx.Client(base_url=said.split(" at ")[1].split("/v1")[0], timeout=600) as client:
                yield Command(process, client, log)
        finally:
            process.kill()
