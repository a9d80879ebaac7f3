"""What is promised when a process of `corellm serve` is killed, stopped or told to end, at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from corellm.engine.process.client import ProcessLLM
from extensions.server.tests.command import CHAT, Command, children, command, starting
from extensions.server.tests.conftest import chat, data_url, serving, user
from extensions.server.tests.footprint import Footprint, assert_no_leak
from tests.engine.process.test_process_faults import exists
from tests.fixtures import wait_until

ENDLESS = chat(user("go on"), max_tokens=900, ignore_eos=True)
PATIENCE = pytest.mark.parametrize("patience", [60, pytest.param(1, marks=pytest.mark.full)])
"""The promised seconds hold on a machine that does nothing else; elsewhere they are so many times as long, and only end
a test that hangs."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if what is inside takes longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def ask(running: Command, pool: ThreadPoolExecutor, count: int) -> list[Future[str]]:
    """Send endless requests, half of them as streams; returns their responses' texts once they are in the engine."""

    def send(index: int) -> str:
        with httpx.Client(base_url=running.http.base_url, timeout=600) as client:
            return client.post(CHAT, json={**ENDLESS, "stream": index % 2 == 0}).text

    sent = [pool.submit(send, index) for index in range(count)]
    wait_until(lambda: in_engine(running) >= count)
    return sent


def in_engine(running: Command) -> float:
    """Requests that the engine has."""
    return running.metric("corellm:num_requests_running") + running.metric("corellm:num_requests_waiting")


@PATIENCE
def test_row_25_a_killed_engine(tiny_llava: Path, tmp_path: Path, patience: int) -> None:
    """Every client has its error in 2 s, `/health` is 503 in 1 s, and the exit status is 1; no process is left."""
    with command(tiny_llava, tmp_path, max_num_seqs=4) as running, ThreadPoolExecutor(8) as pool:
        others = children(running.process.pid)
        sent = ask(running, pool, 8)
        os.kill(running.engine, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: running.http.get("/health").status_code == 503, 1 * patience)
        texts = [future.result(max(0.0, killed + 2 * patience - time.monotonic())) for future in sent]
        assert all("engine_dead" in text for text in texts)
        assert running.process.wait(10 * patience) == 1
        wait_until(lambda: not any(map(exists, others)), 10 * patience)


@PATIENCE
def test_row_26_a_hung_engine(tiny_llava: Path, tmp_path: Path, patience: int) -> None:
    """`/ready` is 503 in 10 s and `/health` is not; clients have a 503 at the deadline; all is well when it goes on.

    Told to end meanwhile, the server does not wait for it.
    """
    seconds = 5 if patience == 1 else 20
    options = {"request_timeout": seconds, "ready_timeout": 3}
    with command(tiny_llava, tmp_path, **options) as running, ThreadPoolExecutor(4) as pool:
        text, before = running.text_of("hello"), Footprint.of(running.process.pid, running.http)
        engine = running.engine
        sent = ask(running, pool, 4)
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: running.http.get("/ready").status_code == 503, 10 * patience)
        assert running.http.get("/health").status_code == 200
        assert all('"code": "timeout"' in future.result(10 * patience) for future in sent)
        os.kill(engine, signal.SIGCONT)
        wait_until(lambda: running.http.get("/ready").status_code == 200, 10 * patience)
        assert running.text_of("hello") == text
        assert_no_leak(running.process.pid, running.http, before)
        os.kill(engine, signal.SIGSTOP)
        wait_until(lambda: running.http.get("/ready").status_code == 503, 10 * patience)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(4 * patience) == 0
        assert not exists(engine)


@PATIENCE
def test_row_38_a_hung_engine_is_ended(tiny_llava: Path, patience: int, caplog: pytest.LogCaptureFixture) -> None:
    """With requests in it, after `hang_timeout`: clients are told, the exit status is 1, no process is left."""
    llm = ProcessLLM(str(tiny_llava), dtype="float32")
    with contextlib.closing(llm), serving(llm, hang_timeout=3) as running, ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(running.post, CHAT, {**ENDLESS, "stream": index % 2 == 0}) for index in range(4)]
        wait_until(lambda: len(llm.engine.link._requests) == 4)
        os.kill(llm.pid, signal.SIGSTOP)
        texts = [future.result(20 * patience).text for future in sent]
        assert all('"code": "engine_hung"' in text and " 3 s" in text for text in texts)
        wait_until(lambda: running.statuses == [1], 20 * patience)
    assert not exists(llm.pid)
    assert "--hang-timeout" in caplog.text


MOMENTS = pytest.mark.parametrize(
    ("seed", "patience"), [(0, 60), *[pytest.param(seed, 2, marks=pytest.mark.full) for seed in range(20)]]
)


@pytest.mark.fresh_starts
@MOMENTS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_row_29_told_to_end_at_any_moment(
    tiny_llava: Path, tmp_path: Path, number: signal.Signals, seed: int, patience: int
) -> None:
    """Told to end, it does in 4 s, loading or serving; killed, its children are gone in 10 s."""
    loads = seed % 2 == 0
    moment = random.Random(seed).random()
    if loads:
        with subprocess.Popen(
            starting(tiny_llava, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            wait_until(lambda: bool(children(process.pid)))  # the engine's; from here on it takes some seconds
            time.sleep(4 * moment)
            others = children(process.pid)
            end(process, number, patience)
    else:
        # one after another, so that they never all end before the signal
        with command(tiny_llava, tmp_path, max_num_seqs=1) as running, ThreadPoolExecutor(6) as pool:
            running.text_of({"image": data_url(seed)}, "what?")
            others, sent = children(running.process.pid), ask(running, pool, 6)
            time.sleep(moment)
            end(running.process, number, patience)
            if number == signal.SIGKILL:
                cut = [future for future in sent if isinstance(future.exception(600), httpx.HTTPError)]
                assert cut
                assert all('"finish_reason":"length"' in future.result() for future in sent if future not in cut)
    wait_until(lambda: not any(map(exists, others)), 10 * patience)


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes], number: signal.Signals, patience: int) -> None:
    """Send a signal and wait as long as is promised."""
    process.send_signal(number)
    assert process.wait(4 * patience) in (0, -number)
