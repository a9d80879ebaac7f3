"""The order, the bounds and the end of a run, before an application that does as it is told."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.errors import ConfigError, EngineDeadError
from corellm_server.aside import Aside
from corellm_server.batch.output_file import OutputError, OutputFile
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from extensions.server.tests.batch.conftest import Batch, line, results, written

Endpoint = Callable[[dict[str, Any]], Awaitable[bytes]]


class FakeApplication:
    """Responds by a function, and counts requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.begun: list[str] = []
        self.num_running = self.most_running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, send, Aside())
        body = json.loads((await receive())["body"])
        self.begun.append(body["id"])
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            response = await self._endpoint(body)
        except ApiError as error:
            await exchange.fail(error)
            return
        finally:
            self.num_running -= 1
        head = [(b"content-type", b"application/json")]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": head})
        await exchange.send({"type": "http.response.body", "body": response[:3], "more_body": True})
        await exchange.send({"type": "http.response.body", "body": response[3:]})


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Batch, FakeApplication]]:
    """A function that makes a batch of some requests before an application."""

    def make(endpoint: Endpoint, num: int = 100, **options: Any) -> tuple[Batch, FakeApplication]:
        application = FakeApplication(endpoint)
        monkeypatch.setattr("corellm_server.batch.running.make_app", lambda service: application)
        monkeypatch.setattr("corellm_server.service.Preparation", lambda *_: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr("corellm_server.service.OutputForms", lambda *_: None)
        written(tmp_path / "requests.jsonl", (line(f"r{i}", {"id": f"r{i}"}) for i in range(num)))
        return Batch(
            SimpleNamespace(dead="killed", input_processor=None), tmp_path, **{"max_queue": 4, **options}
        ), application

    return make


def ids(path: Path) -> list[str]:
    return [result["custom_id"] for result in results(path)]


async def echo(body: dict[str, Any]) -> bytes:
    """After more turns of the loop, the more its number ends with."""
    for _ in range(int(body["id"][-1])):
        await asyncio.sleep(0)
    return json.dumps(body).encode()


def test_results_are_in_the_order_of_requests(batch: Any) -> None:
    """However they finish; at most `max_queue` run at once, and as many do."""
    run, application = batch(echo)
    progress = run.run()
    assert ids(run.output) == [f"r{i}" for i in range(100)]
    assert all(result["response"]["body"] == {"id": result["custom_id"]} for result in results(run.output))
    assert application.most_running == 4
    assert (progress.total, progress.num_done, progress.num_before) == (100, 100, 0)
    assert len({result["id"] for result in results(run.output)}) == 100


def test_what_waits_for_a_slow_request_is_bounded(batch: Any) -> None:
    """By number: behind the first one, 31 others finish, and no more begin."""

    async def slow(body: dict[str, Any]) -> bytes:
        if body["id"] == "r0":
            for _ in range(500):
                await asyncio.sleep(0)
            held.append(len(application.begun))
        return b"{}"

    held: list[int] = []
    run, application = batch(slow)
    run.run()
    assert held == [8 * 4]
    assert ids(run.output) == [f"r{i}" for i in range(100)]


@pytest.mark.parametrize(("endpoint_bytes", "limit", "most"), [(2, 30, 2), (1000, 5000, 7)])
def test_bytes_in_memory_are_bounded(batch: Any, endpoint_bytes: int, limit: int, most: int) -> None:
    """Bodies of 12 bytes while they run, results of some 1,100 while they wait. One request always runs."""

    async def slow(body: dict[str, Any]) -> bytes:
        if body["id"] == "r0":
            for _ in range(500):
                await asyncio.sleep(0)
            held.append(len(application.begun))
        return b'"' + b"x" * endpoint_bytes + b'"'

    held: list[int] = []
    run, application = batch(slow, max_held_bytes=limit)
    run.run()
    assert len(results(run.output)) == 100
    assert held[0] <= most


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_gone_on_with(batch: Any, number: signal.Signals) -> None:
    """Requests in flight are cancelled and have no result; the next run does them, and none again."""

    async def stopping(body: dict[str, Any]) -> bytes:
        if body["id"] == "r50":
            signal.raise_signal(number)
            await asyncio.get_running_loop().create_future()
        return b"{}"

    run, application = batch(stopping)
    progress = run.run()
    assert (run.ended, progress.num_done) == (number, 50)
    assert ids(run.output) == [f"r{i}" for i in range(50)]
    assert application.num_running == 0
    again, application = batch(echo)
    progress = again.run()
    assert (progress.num_done, progress.num_before) == (100, 50)
    assert application.begun == [f"r{i}" for i in range(50, 100)]
    assert ids(run.output) == [f"r{i}" for i in range(100)]


def test_a_dead_engine_gives_no_results(batch: Any) -> None:
    """The run ends, and the requests are done by the next one."""

    async def dying(body: dict[str, Any]) -> bytes:
        if body["id"] == "r20":
            raise ApiError(503, "the engine stopped", code="engine_dead")
        return b"{}"

    run, _ = batch(dying)
    with pytest.raises(EngineDeadError, match="killed"):
        run.run()
    assert ids(run.output) == [f"r{i}" for i in range(20)]


def test_failures_are_results_and_are_told(batch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """By line and custom_id, the first twenty of them; responses that are no JSON are text."""

    async def failing(body: dict[str, Any]) -> bytes:
        raise ApiError(500 if body["id"] == "r0" else 400, "no\nway", param="x")

    run, _ = batch(failing, 30)
    progress = run.run()
    assert progress.failures == {"HTTP 400": 29, "HTTP 500": 1}
    told = capsys.readouterr().err.splitlines()
    assert "line 1, custom_id 'r0': HTTP 500" in told[0]
    assert sum("custom_id" in row for row in told) == 20
    assert "results only" in told[-1]
    first = results(run.output)[0]
    assert (first["response"]["status_code"], first["error"]) == (500, None)
    assert first["response"]["body"]["error"]["message"] == "no\nway"


def test_an_output_that_cannot_be_written_ends_the_run(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in flight are cancelled; what was written is whole, and the next run goes on."""
    run, application = batch(echo)
    append = OutputFile.append

    def until_full(self: OutputFile, row: bytes) -> None:
        if b'"r30"' in row:
            raise OutputError("full")
        append(self, row)

    with monkeypatch.context() as patched:
        patched.setattr(OutputFile, "append", until_full)
        with pytest.raises(OutputError, match="full"):
            run.run()
    assert application.num_running == 0
    assert ids(run.output) == [f"r{i}" for i in range(30)]
    again, _ = batch(echo)
    assert again.run().num_before == 30
    assert ids(run.output) == [f"r{i}" for i in range(100)]


def test_an_output_of_another_input(batch: Any) -> None:
    """Another order, other ids, and fewer requests are noticed, and nothing is written."""
    run, _ = batch(echo, 10)
    run.run()
    before = run.output.read_bytes()
    for others in (["r1", "r0"], [f"x{i}" for i in range(20)], ["r0", "r1"], []):
        written(run.input, (line(custom_id, {"id": custom_id}) for custom_id in others))
        with pytest.raises(ConfigError, match=r"result \d+ .*'r\d'"):
            Batch(SimpleNamespace(input_processor=None), run.input.parent).run()
        assert run.output.read_bytes() == before


def test_lines_now_and_then(batch: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal: what is done, what failed, how long it takes."""
    monkeypatch.setattr("corellm_server.batch.progress._LINE_SECONDS", 0.0)
    run, _ = batch(echo, 10)
    run.run()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 10
    assert told[3].startswith("corellm batch: 4 of 10 requests done, 0 failed")
