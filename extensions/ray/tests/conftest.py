"""`corellm serve` with two replicas of a tiny LLaVA on a local Ray cluster, and one engine of the same model."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from corellm import AsyncLLM
from extensions.server.tests.command import CHAT, Command, command
from extensions.server.tests.conftest import Running, chat, serving

ENGINE = {"dtype": "float32", "block_size": 8, "max_num_seqs": 16}
REPLICAS = {
    "replicas": "'2'", "ray-address": "local", "replica-cpus": 0.5, "object-store-memory": "80M",
    "replica-drain-timeout": 30, "log-level": "info",
}  # fmt: skip
"""Fractions of cores, as a machine may have fewer than there are replicas."""


@dataclass
class Replicated:
    """A running server and its replicas."""

    command: Command

    def asked(self, messages: Any, num_tokens: int, **fields: Any) -> Any:
        """The response to a conversation."""
        return self.command.http.post(CHAT, json=chat(messages, max_tokens=num_tokens, ignore_eos=True, **fields))

    def client(self) -> openai.OpenAI:
        """OpenAI's own client."""
        return openai.OpenAI(base_url=f"{self.command.http.base_url}/v1", api_key="unused", max_retries=0)

    def metric(self, name: str) -> dict[str, float]:
        """A metric by replica."""
        text = self.command.http.get("/metrics").text
        found = re.findall(rf'^corellm:{name}{{replica="(\w+)"}} (\S+)$', text, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    @property
    def replicas(self) -> set[str]:
        """Ids of the replicas that answer."""
        return set(self.metric("num_requests_running"))

    @property
    def processes(self) -> list[psutil.Process]:
        """Those of the replicas that have begun, in the cluster that the server started."""
        found = psutil.Process(self.command.process.pid).children(recursive=True)
        return [process for process in found if _title(process).startswith("ray::ServeReplica")]

    def logged(self) -> str:
        """What the server wrote to its log."""
        return self.command.log.read_text()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended
        return ""


@contextlib.contextmanager
def serving_replicas(model: Path, folder: Path, **options: Any) -> Iterator[Replicated]:
    """A server with two replicas behind it, if options do not say others; it ends in order, and leaves no process."""
    engine = {name.replace("_", "-"): value for name, value in ENGINE.items()}
    with ExitStack() as stack:
        running = stack.enter_context(command(model, folder, **{**REPLICAS, **engine, **options}))
        started = psutil.Process(running.process.pid).children(recursive=True)
        yield Replicated(running)
        running.process.send_signal(signal.SIGTERM)
        try:
            assert running.process.wait(600) == 0, running.log.read_text()
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server did not end: {running.log.read_text()}")
        _, left = psutil.wait_procs(started, 60)
        assert not left


@pytest.fixture(scope="session")
def replicated(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    """A server with two replicas on a cluster of its own."""
    with serving_replicas(tiny_llava, tmp_path_factory.mktemp("replicated")) as running:
        yield running


@pytest.fixture(scope="session")
def one(tiny_llava: Path) -> Iterator[Running]:
    """A server with one engine, in this process."""
    with contextlib.closing(AsyncLLM(str(tiny_llava), **ENGINE)) as llm, serving(llm) as running:
        yield running


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    for _ in range(12_000):
        if is_so():
            return
        time.sleep(0.05)
    pytest.fail("it did not come")
