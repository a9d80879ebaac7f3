"""What is promised when either process ends, hangs or cannot start: clients get errors, and no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corellm import SamplingParams
from corellm.engine.process import link
from corellm.engine.process.client import ProcessLLM
from corellm.engine.process.process import Process
from corellm.errors import CheckpointError, ConfigError, EngineDeadError
from corellm.loading import opening
from tests.fixtures import wait_until

ENGINE = {"dtype": "float32", "max_num_batched_tokens": 64, "block_size": 8, "max_model_len": 1024}
ENDLESS = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)


@pytest.fixture
def llm(tiny_llava: Path) -> Iterator[ProcessLLM]:
    loaded = ProcessLLM(str(tiny_llava), **ENGINE)
    yield loaded
    loaded.close()
    assert not exists(loaded.pid)


def exists(pid: int) -> bool:
    """Whether a process runs; one that its parent has not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def children() -> list[int]:
    """Engine processes of this one that run; other tests have children of theirs."""
    listed = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]
    return [int(pid) for pids in listed for pid in pids.split() if exists(int(pid)) and is_engine(int(pid))]


def is_engine(pid: int) -> bool:
    """Whether a process runs the engine."""
    with contextlib.suppress(OSError):
        return b"engine.process.engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


async def until(condition: Any) -> None:
    """Wait until a condition holds, for as long as a busy machine may need."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


async def stream(llm: ProcessLLM, begun: asyncio.Semaphore) -> None:
    """Read a request that does not end by itself."""
    is_first = True
    async for _ in llm.generate("USER: hello ASSISTANT:", ENDLESS):
        if is_first:  # which may have several tokens: a slow reader gets the newest
            begun.release()
        is_first = False


def test_a_killed_engine_fails_every_request_at_once(llm: ProcessLLM) -> None:
    """Streams, calls and later requests get one error that names the signal; nothing waits for ever."""

    async def main() -> None:
        begun = asyncio.Semaphore(0)
        streams = [asyncio.ensure_future(stream(llm, begun)) for _ in range(12)]
        for _ in streams:
            await begun.acquire()
        await llm.check_health()
        os.kill(llm.pid, signal.SIGKILL)
        metrics = asyncio.ensure_future(llm.get_metrics())
        results = await asyncio.wait_for(asyncio.gather(*streams, metrics, return_exceptions=True), 600)
        assert {type(result) for result in results} == {EngineDeadError}
        assert "SIGKILL" in str(results[0])
        assert llm.dead is not None
        for later in (stream(llm, begun), llm.get_metrics(), llm.check_health()):
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await later

    asyncio.run(main())


def test_a_hung_engine_can_be_told_from_a_busy_one(llm: ProcessLLM) -> None:
    """A stopped process is silent, idle or not; its requests go on after, and closing does not wait for it."""

    async def main() -> None:
        begun = asyncio.Semaphore(0)
        await until(lambda: llm.seconds_silent < 1)
        os.kill(llm.pid, signal.SIGSTOP)
        await until(lambda: llm.seconds_silent > 3)
        assert llm.dead is None
        task = asyncio.ensure_future(stream(llm, begun))
        steps = llm.num_steps
        os.kill(llm.pid, signal.SIGCONT)
        await until(lambda: llm.num_steps > steps and llm.seconds_silent < 3)
        os.kill(llm.pid, signal.SIGSTOP)
        await until(lambda: llm.seconds_silent > 3)
        await asyncio.to_thread(llm.close)
        with pytest.raises(EngineDeadError, match="was shut down"):
            await task

    asyncio.run(main())


def test_closing_fails_open_streams(llm: ProcessLLM) -> None:
    """And ends the process; closing twice is allowed."""

    async def main() -> None:
        begun = asyncio.Semaphore(0)
        task = asyncio.ensure_future(stream(llm, begun))
        await begun.acquire()
        await asyncio.to_thread(llm.close)
        assert not exists(llm.pid)
        with pytest.raises(EngineDeadError, match="was shut down"):
            await task

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_says_why(tiny_llava: Path, tmp_path: Path) -> None:
    """Whether this process finds out or the engine's, the error is typed and no process is left."""
    with pytest.raises(ConfigError, match="16 tokens"):
        ProcessLLM(str(tiny_llava), **{**ENGINE, "num_kv_blocks": 2})
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        ProcessLLM(str(tmp_path))
    with pytest.raises(ConfigError, match="unknown engine argument"):
        ProcessLLM(str(tiny_llava), max_model_length=3)
    assert children() == []


def test_an_engine_that_is_killed_while_it_loads(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told; it does not wait for a process that is not there."""
    open_model = opening.open_model

    def kill_first(*args: Any) -> Any:
        wait_until(lambda: bool(children()))  # its command line is there some time after the process
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        return open_model(*args)

    monkeypatch.setattr(opening, "open_model", kill_first)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        ProcessLLM(str(tiny_llava), **ENGINE)
    assert children() == []


def test_an_engine_that_is_ready_first(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signs of life do not take the place of the sizes that this process waits for."""
    open_model, started = opening.open_model, []

    class Noted(Process):
        def __init__(self, *share: Any) -> None:
            super().__init__(*share)
            started.append(self)

    def open_late(*args: Any) -> Any:
        def num_bytes() -> int:
            return len(started[0].channel._socket.recv(1 << 16, socket.MSG_PEEK))

        first = num_bytes()  # waits until the engine is ready
        asyncio.run(until(lambda: num_bytes() > first))
        return open_model(*args)

    monkeypatch.setattr(link, "Process", Noted)
    monkeypatch.setattr(opening, "open_model", open_late)
    ProcessLLM(str(tiny_llava), **ENGINE).close()


SCRIPT = """
import asyncio, sys
from corellm import SamplingParams
from corellm.engine.process import process
from corellm.engine.process import link
from corellm.engine.process.client import ProcessLLM
from corellm.engine.process.process import Process
from tests.fixtures import wait_until

class Announced(process.Process):
    def __init__(self, *share):
        super().__init__(*share)
        print(self.pid, flush=True)

link.Process = Announced
llm = ProcessLLM(sys.argv[1], dtype="float32", max_model_len=1024)

async def main():
    async for output in llm.generate("USER: hello ASSISTANT:", SamplingParams(max_tokens=1000, ignore_eos=True)):
        print("running", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["while it loads", "while it runs"])
def test_a_killed_api_process_takes_the_engine_along(tiny_llava: Path, moment: str) -> None:
    """At whatever moment: the kernel ends the engine's process, which needs no turn of its own for it."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tiny_llava)], stdout=subprocess.PIPE, text=True
    ) as api_process:
        assert api_process.stdout is not None
        engine = int(api_process.stdout.readline())
        if moment == "while it runs":
            assert api_process.stdout.readline() == "running\n"
        assert exists(engine)
        api_process.kill()
        asyncio.run(until(lambda: not exists(engine)))
