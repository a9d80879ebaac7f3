"""Clusters that are joined, replicas that come and go with the load, and several models on one cluster."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from extensions.ray.tests.conftest import Replicated, serving_replicas, until
from extensions.server.tests.command import CHAT
from extensions.server.tests.conftest import Running, chat, image_part, user

pytestmark = pytest.mark.full  # clusters of their own; `make ray-proof` runs them
QUESTION = user(image_part(3), {"type": "text", "text": "What is it?"})


def text_of(asked: Replicated | Running, model: str = "tiny") -> str:
    """The answer to a question about an image."""
    body = {**chat(QUESTION, max_tokens=12, ignore_eos=True), "model": model}
    response = asked.command.http.post(CHAT, json=body) if isinstance(asked, Replicated) else asked.post(CHAT, body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@contextmanager
def started_cluster() -> Iterator[str]:
    """The address of a cluster that others may join, as `ray start` makes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["start", "--head", "--block", "--num-cpus", "2", "--node-ip-address", "127.0.0.1", "--port", str(port)]
    words += ["--object-store-memory", "100000000", "--include-dashboard", "false", "--disable-usage-stats"]
    ray = Path(sys.executable).parent / "ray"
    with subprocess.Popen([ray, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert any("Ray runtime started" in line for line in process.stdout)
            yield f"127.0.0.1:{port}"
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            process.stdout.close()
            process.wait(600)
            for child in psutil.wait_procs(children, 600)[1]:
                child.kill()


def test_a_cluster_that_runs_is_joined(tiny_llava: Path, one: Running, tmp_path: Path) -> None:
    """Its replicas end with the server, and it goes on: the next server finds it."""
    wanted = text_of(one)
    with started_cluster() as address:
        for turn in range(2):
            folder = tmp_path / str(turn)
            folder.mkdir()
            with serving_replicas(tiny_llava, folder, **{"ray-address": address}) as running:
                assert text_of(running) == wanted
                assert len(running.replicas) == 2


def test_replicas_come_and_go_with_the_load(tiny_llava: Path, tmp_path: Path) -> None:
    """One at first, two under load, one again after a while without."""
    options = {"replicas": "'1:2'", "replica-queue": 2}
    with serving_replicas(tiny_llava, tmp_path, **options) as running, ThreadPoolExecutor(8) as pool:
        assert len(running.replicas) == 1
        is_over: list[bool] = []

        def ask_on(number: int) -> None:
            while not is_over:
                response = running.asked(user(f"Tell me of number {number}."), 400)
                assert response.status_code == 200, response.text

        asked = [pool.submit(ask_on, number) for number in range(8)]
        until(lambda: len(running.replicas) == 2)
        is_over.append(True)
        for future in asked:
            future.result(600)
        until(lambda: len(running.replicas) == 1)
        assert running.asked(QUESTION, 4).status_code == 200


def test_several_models_share_a_cluster(
    tiny_llava: Path, make_llava: Callable[..., Path], one: Running, tmp_path: Path
) -> None:
    """Each has replicas of its own, and requests go by its name."""
    models = {"first": {"model": str(tiny_llava)}, "of/second": {"model": str(make_llava(seed=1))}}
    with serving_replicas(tiny_llava, tmp_path, replicas="'1'", models=models) as running:
        wanted = text_of(one)
        assert text_of(running, "first") == wanted
        assert text_of(running, "of/second") != wanted
        listed = running.command.http.get("/v1/models").json()["data"]
        assert {model["id"] for model in listed} == {"first", "of/second"}
