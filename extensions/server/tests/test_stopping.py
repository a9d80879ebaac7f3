"""How a server ends: told to stop, or because its engine died; and what clients are told."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from corellm import AsyncLLM
from corellm.errors import EngineDeadError
from extensions.server.tests.conftest import Running, chat, in_engine, serving, user
from extensions.server.tests.test_connections import connected
from extensions.server.tests.test_uploads import HEAD
from tests.fixtures import wait_until

CHAT = "/v1/chat/completions"


def held(running: Running, **fields: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request in a thread, and its response once it is there."""
    responses: list[httpx.Response] = []
    body = chat(user("go on"), max_tokens=300, ignore_eos=True, **fields)
    thread = threading.Thread(target=lambda: responses.append(running.post(CHAT, body)))
    thread.start()
    wait_until(lambda: len(running.service.intake) == 1 or bool(responses))
    return thread, responses


@pytest.mark.parametrize("stream", [False, True])
def test_requests_in_flight_are_aborted(tiny_llava: Path, *, stream: bool) -> None:
    """Without time to finish, they end with an error: a 503, or an event in a stream."""
    llm = AsyncLLM(str(tiny_llava), dtype="float32")
    try:
        with serving(llm) as running:
            stall = threading.Event()
            in_engine(llm, lambda _: stall.wait(600))
            thread, responses = held(running, stream=stream)
            running.server.stop()
            thread.join(600)
            stall.set()
        assert responses[0].status_code == 503
        assert "shutting down" in responses[0].json()["error"]["message"]
        assert running.statuses == [0]
    finally:
        llm.close()


def test_a_stream_that_began_ends_with_an_error_event(tiny_llava: Path) -> None:
    """The last event is the error, and there is no `[DONE]`."""
    llm = AsyncLLM(str(tiny_llava), dtype="float32")
    try:
        with serving(llm) as running, running.http() as client:
            stall = threading.Event()
            body = chat(user("go on"), max_tokens=300, ignore_eos=True, stream=True)
            with client.stream("POST", CHAT, json=body) as response:
                lines = response.iter_lines()
                events = [next(lines)]
                in_engine(llm, lambda _: stall.wait(600))
                running.server.stop()
                events += [line for line in lines if line]
                stall.set()
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "unavailable"
    finally:
        llm.close()


def test_draining_lets_requests_finish(llm: AsyncLLM) -> None:
    """Requests in flight are served to the end; new ones and `/ready` get a 503 meanwhile."""
    with serving(llm, shutdown_timeout=300.0) as running:
        stall = threading.Event()
        in_engine(llm, lambda _: stall.wait(600))
        thread, responses = held(running)
        running.server.stop()
        wait_until(lambda: running.service.intake.ending is not None)
        assert running.post(CHAT, chat(user("x"))).status_code == 503
        assert running.get("/ready").status_code == 503
        assert running.get("/health").status_code == 200
        stall.set()
        thread.join(600)
    assert responses[0].status_code == 200
    assert responses[0].json()["usage"]["completion_tokens"] == 300
    assert running.statuses == [0]


def test_a_second_signal_ends_requests_with_an_error(llm: AsyncLLM) -> None:
    """They are not waited for, and their clients are told."""
    with serving(llm, shutdown_timeout=300.0) as running:
        stall = threading.Event()
        in_engine(llm, lambda _: stall.wait(600))
        thread, responses = held(running)
        running.server.stop()
        wait_until(lambda: running.service.intake.ending is not None)
        running.server.stop()
        thread.join(600)
        stall.set()
    assert responses[0].status_code == 503
    assert "shutting down" in responses[0].json()["error"]["message"]
    assert running.statuses == [0]


def test_a_hung_engine_is_not_ready(llm: AsyncLLM) -> None:
    """`/ready` is 503 while no step is completed, `/health` is not, and a request ends at its deadline."""
    with serving(llm, ready_timeout=2, request_timeout=0.3) as running:
        assert running.get("/ready").status_code == 200
        stall = threading.Event()
        in_engine(llm, lambda _: stall.wait(600))
        wait_until(lambda: running.get("/ready").status_code == 503)
        assert "no step" in running.get("/ready").json()["error"]["message"]
        assert running.get("/health").status_code == 200
        assert b"corellm:requests_total" in running.get("/metrics").content
        late = running.post(CHAT, chat(user("x")))
        assert (late.status_code, late.json()["error"]["code"]) == (503, "timeout")
        stall.set()
        wait_until(lambda: running.get("/ready").status_code == 200)


def test_a_dead_engine_ends_the_server(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting clients get a 503, also one whose request has not come yet, and the exit status is 1."""
    llm = AsyncLLM(str(tiny_llava), dtype="float32")
    with serving(llm, shutdown_timeout=30.0) as running, connected(running) as arriving:
        arriving.sendall(HEAD)
        wait_until(lambda: len(running.service.intake.uploads) == 1)

        def die() -> list[Any]:
            raise EngineDeadError("the test ended it")

        monkeypatch.setattr(llm.engine, "step", die)
        response = running.post(CHAT, chat(user("x")))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        assert b"engine_dead" in b"".join(iter(lambda: arriving.recv(1 << 16), b""))
        wait_until(lambda: bool(running.statuses))
    assert running.statuses == [1]
    llm.close()


def test_an_unexpected_error_is_logged_and_not_told(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """500 with an id that the log has, beside the traceback; the next request is served."""
    with serving(llm) as running:
        with monkeypatch.context() as broken:

            def fail(*_: Any, **__: Any) -> Any:
                raise ZeroDivisionError("a secret at 0x7f00deadbeef")

            broken.setattr(type(llm.input_processor), "process_chat", fail)
            response = running.post(CHAT, chat(user("my private words")))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (500, "internal_error")
        assert "secret" not in response.text
        incident = error["message"].split()[2].rstrip(";")
        assert incident in caplog.text
        assert "ZeroDivisionError" in caplog.text
        assert "my private words" not in caplog.text
        assert running.post(CHAT, chat(user("x"))).status_code == 200
