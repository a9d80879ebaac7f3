"""`corellm serve` as users run it: its processes, and how it ends, by signals and by crashes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from extensions.server.tests.command import CHAT, children, cmdline, command
from extensions.server.tests.conftest import chat, data_url, user
from tests.engine.process.test_process_faults import exists
from tests.fixtures import random_image, wait_until

pytestmark = pytest.mark.fresh_starts
ENDLESS = {**chat(user("go on")), "max_tokens": 900, "ignore_eos": True, "stream": True}


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
        assert running.process.wait(600) == 0
        assert not exists(engine)
    log = (tmp_path / "stderr").read_text()
    rows = [json.loads(row) for row in log.splitlines()]
    assert any(row["logger"].startswith("corellm.loading.") for row in rows)  # the engine's process has the same form
    logged = next(row for row in rows if row.get("route") == CHAT)
    assert logged["request_id"] == response.headers["x-request-id"]
    assert (logged["status"], logged["outcome"], logged["output_tokens"]) == (200, "ok", 6)
    assert "my private words" not in log


def test_processes_and_a_killed_api_process(tiny_llava: Path, tmp_path: Path) -> None:
    """Media are decoded by children of the API process alone; killed, it takes them and a busy engine along."""
    random_image(40, 30, 7).save(tmp_path / "image.png")
    with command(tiny_llava, tmp_path, allowed_local_media_path=tmp_path) as running:
        of_bytes = running.text_of({"image": data_url(7)}, "what?")
        assert running.text_of({"image": "image.png"}, "what?") == of_bytes
        assert running.text_of({"image": data_url(8)}, "what?") != of_bytes
        others = children(running.process.pid)
        assert any(b"media" in cmdline(pid) for pid in others)
        assert children(running.engine) == set()
        with running.http.stream("POST", CHAT, json=ENDLESS) as response:
            next(response.iter_lines())
            running.process.kill()
            wait_until(lambda: not any(map(exists, others)))
