"""`corellm serve` as users run it: its processes, and how it ends, by signals and by crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import random_image
from tests.server.conftest import chat, data_url, user, wait_until
from tests.server.test_engine_process_faults import exists

CHAT = "/v1/chat/completions"
ENDLESS = {**chat(user("go on")), "max_tokens": 900, "ignore_eos": True, "stream": True}


def children(pid: int) -> set[int]:
    """Child processes that run, of any of its threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    found = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    return {child for child in found if exists(child)}


@dataclass
class Command:
    """A running `corellm serve`."""

    process: subprocess.Popen[str]
    http: httpx.Client

    @property
    def engine(self) -> int:
        """Id of the engine's process."""
        (pid,) = (pid for pid in children(self.process.pid) if b"engine_main" in cmdline(pid))
        return pid

    def text_of(self, *content: Any) -> str:
        """The output of a conversation."""
        response = self.http.post(CHAT, json=chat(user(*content)))
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])


def cmdline(pid: int) -> bytes:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def command(model: Path, folder: Path, **options: Any) -> Iterator[Command]:
    """Run the command with a configuration file; all that it started is gone at the end."""
    config = folder / "server.yaml"
    given = {"model": str(model), "port": 0, "served-model-name": "tiny", "dtype": "float32", **options}
    config.write_text("".join(f"{name}: {value}\n" for name, value in given.items()))
    started = [sys.executable, "-m", "corellm", "serve", "--config", str(config), "--log-format", "json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        open(folder / "stderr", "w") as stderr,
        subprocess.Popen(started, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split(" at ")[1].split("/v1")[0]
            with httpx.Client(base_url=url, timeout=60) as client:
                yield Command(process, client)
        finally:
            process.kill()


def test_processes_and_a_killed_engine(tiny_llava: Path, tmp_path: Path) -> None:
    """Media are decoded by children of the API process alone. Without its engine, the server ends with 1.

    Before it ends, streams get an error event, and `/health` is 503. No process is left.
    """
    random_image(40, 30, 7).save(tmp_path / "image.png")
    with command(tiny_llava, tmp_path, allowed_local_media_path=tmp_path) as running:
        engine, before = running.engine, children(running.process.pid)
        of_bytes = running.text_of({"image": data_url(7)}, "what?")
        assert running.text_of({"image": "image.png"}, "what?") == of_bytes
        assert running.text_of({"image": data_url(8)}, "what?") != of_bytes
        after = children(running.process.pid)
        assert any(b"media" in cmdline(pid) for pid in after - before)
        assert children(engine) == set()
        with running.http.stream("POST", CHAT, json=ENDLESS) as response:
            events = response.iter_lines()
            assert "delta" in next(events)
            os.kill(engine, signal.SIGKILL)
            *_, last = (line for line in events if line)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert running.http.get("/health").status_code == 503
        assert running.process.wait(60) == 1
        wait_until(lambda: not any(map(exists, after)))


def test_sigterm_lets_requests_finish(tiny_llava: Path, tmp_path: Path) -> None:
    """The stream in flight is complete, the exit status 0, the engine ended, and no content was logged."""
    with command(tiny_llava, tmp_path, shutdown_timeout=60) as running:
        engine = running.engine
        response = running.http.post(CHAT, json=chat(user("my private words")))
        with running.http.stream("POST", CHAT, json={**ENDLESS, "max_tokens": 200}) as stream:
            events = stream.iter_lines()
            next(events)
            running.process.send_signal(signal.SIGTERM)
            *_, last = (line for line in events if line)
        assert last == "data: [DONE]"
        assert running.process.wait(60) == 0
        assert not exists(engine)
    log = (tmp_path / "stderr").read_text()
    logged = json.loads(next(row for row in log.splitlines() if f'"{CHAT}"' in row).partition("logs: ")[2])
    assert logged["request_id"] == response.headers["x-request-id"]
    assert (logged["status"], logged["outcome"], logged["output_tokens"]) == (200, "ok", 6)
    assert "my private words" not in log


def test_a_killed_api_process_takes_all_others_along(tiny_llava: Path, tmp_path: Path) -> None:
    """The engine in the middle of a stream, and the children that decode media."""
    with command(tiny_llava, tmp_path) as running:
        running.text_of({"image": data_url(7)}, "what?")
        others = children(running.process.pid)
        assert len(others) > 1
        with running.http.stream("POST", CHAT, json=ENDLESS) as response:
            next(response.iter_lines())
            running.process.kill()
            wait_until(lambda: not any(map(exists, others)))
