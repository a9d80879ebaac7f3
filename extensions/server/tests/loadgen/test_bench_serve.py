"""`corellm bench serve` against a fake server: what is sent, what is noted, what is said when it cannot be measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from corellm.cli import main
from corellm_server.loadgen.client import Client
from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings
from extensions.server.tests.fetching.hosts import listening, silent
from extensions.server.tests.loadgen.fake_openai import THREE_TOKENS, Reply, chunk, error, fake_openai, stream, usage


def bench(*options: str) -> int:
    """Run the command, all requests at once."""
    return main(["bench", "serve", "--rate", "inf", "--prompt-words", "3", *options])


def test_measures_a_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every request is counted, the check is not; the numbers are printed, written and drawn."""
    numbers, drawing = tmp_path / "load.json", tmp_path / "load.png"
    with fake_openai(key="secret") as fake:
        options = ["--num", "5", "--images", "1", "--image-size", "16x16", "--api-key", "secret", "--max-tokens", "9"]
        assert bench("--url", fake.url, *options, "--json", str(numbers), "--plot", str(drawing)) == 0
        assert len(fake.bodies) == 6
        assert {(body["model"], body["max_tokens"]) for body in fake.bodies} == {("fake", 9)}
    assert "5, of which 5 succeeded" in capsys.readouterr().out
    written = json.loads(numbers.read_text())
    assert written["summary"]["output_tokens"] == 15
    assert written["summary"]["prompt_tokens"] == 35
    assert [len(request["chunks"]) for request in written["requests"]] == [3] * 5
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert "secret" not in numbers.read_text()


def note(reply: Reply) -> RequestResult:
    """What is noted of one reply, with a clock that counts how often it is asked."""

    async def main(url: str) -> RequestResult:
        ticks = itertools.count()
        async with Client(LoadSettings(url), lambda: float(next(ticks))) as client:
            return await client.send(RequestResult(0, 0.0), b"{}")

    with fake_openai(lambda n, body: reply) as fake:
        return asyncio.run(main(fake.url))


def test_parts_with_text_are_noted() -> None:
    """An empty first part is no token; the server's count of tokens is taken, else the number of parts."""
    counted = note(THREE_TOKENS)
    assert (counted.sent, counted.chunks, counted.ended) == (0, [1, 2, 3], 4)
    assert (counted.prompt_tokens, counted.output_tokens, counted.error) == (7, 3, None)
    uncounted = note(stream(chunk("a"), chunk(None, reasoning_content="b"), chunk("c", "length"), done=False))
    assert (uncounted.chunks, uncounted.output_tokens, uncounted.error) == ([1, 2, 3], 3, None)
    two_at_once = note(stream(chunk("a b"), chunk(" c d", "stop"), usage(1, 4)))
    assert (two_at_once.ttft, two_at_once.tpot) == (1, 1 / 3)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (error(429, "queue full"), "HTTP 429", "queue full"),
        ((500, b"<html>oops</html>"), "HTTP 500", "<html>oops</html>"),
        (stream(chunk("a"), done=False), "stream broke off", ""),
        (stream(chunk("a"), {"error": {"message": "aborted"}}), "error in stream", "aborted"),
        ((200, b"data: {nonsense\n\n"), "malformed stream", "{nonsense"),
        ((200, b"data: [1]\n\n"), "malformed stream", "[1]"),
        ((200, b'{"choices": []}'), "stream broke off", ""),
    ],
)
def test_failures_are_noted(reply: Reply, kind: str, message: str) -> None:
    """By their kind, with what the server said."""
    result = note(reply)
    assert (result.error, result.message) == (kind, message)


def test_failures_do_not_stop_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    """They are counted by status; the exit status is 1 only if none succeeded."""

    def every_third(n: int, body: dict[str, Any]) -> Reply:
        return THREE_TOKENS if n % 3 == 0 else error(503 if n % 3 == 1 else 429, "busy")

    with fake_openai(every_third) as fake:
        assert bench("--url", fake.url, "--num", "9") == 0
        out = capsys.readouterr().out
        assert "9, of which 3 succeeded" in out
        assert "3 x HTTP 503, e.g. busy" in out
        assert "3 x HTTP 429, e.g. busy" in out
    with fake_openai(lambda n, body: error(503, "busy") if n else THREE_TOKENS) as fake:
        assert bench("--url", fake.url, "--num", "2") == 1


def test_a_request_that_takes_too_long_has_failed() -> None:
    """Its connection is closed."""

    async def main() -> RequestResult:
        async with listening(silent) as host:
            settings = LoadSettings(f"http://127.0.0.1:{host.port}", timeout=0.1)
            async with Client(settings, lambda: 0.0) as client:
                result = await client.send(RequestResult(0, 0.0), b"{}")
                await asyncio.wait_for(host.closed.wait(), 600)
                return result

    assert asyncio.run(main()).error == "timeout"


@pytest.mark.parametrize(
    ("options", "fake_options", "said"),
    [
        (["--model", "nonsense"], {}, "'nonsense'; it has fake, other"),
        ([], {"key": "k"}, "wants a key; give it by --api-key"),
        (["--api-key", "x"], {"key": "k"}, "key given by --api-key"),
        ([], {"models": error(404, "no")}, "by --model"),
        ([], {"models": (200, b"<html>")}, "lists no model"),
        ([], {"reply": lambda n, body: error(400, "takes no images")}, "such requests: HTTP 400: takes no images"),
        (["--plot", "x.doc"], {}, "--plot writes .png"),
        (["--json", "/no/such/x.json"], {}, "no such directory"),
        (["--num", "0"], {}, "--num must be positive"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said(
    options: list[str], fake_options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before any load."""
    with fake_openai(**fake_options) as fake:
        assert bench("--url", fake.url, *options) == 1
        assert len(fake.bodies) <= 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("corellm: error: ")


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that installs it is named before anything is sent."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench("--url", "http://127.0.0.1:9", "--plot", "x.png") == 1
    assert "needs matplotlib" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is wrong, or nothing listens."""
    with fake_openai() as fake:
        url = fake.url
    assert bench("--url", url) == 1
    assert f"{url}/v1" in capsys.readouterr().err
    assert bench("--url", "127.0.0.1:8000") == 1
    assert "--url" in capsys.readouterr().err


def test_a_model_may_be_named_where_none_are_listed() -> None:
    """Some servers have no list; a URL with a path is taken as it is."""
    with fake_openai(models=error(404, "no")) as fake:
        assert bench("--url", f"{fake.url}/v1/", "--num", "1", "--model", "any") == 0
        assert fake.bodies[0]["model"] == "any"
