"""The soak in small, on a real server; and that it notices what it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak import __main__ as command_line
from bench.soak.connection import judged
from bench.soak.run import Report
from bench.soak.tally import Tally
from extensions.server.tests.footprint import Footprint, ProcessFootprint

PROCESS = ProcessFootprint("server", 400 << 20, 0, 500 << 20, descriptors=30, memfds=0, threads=20)
AT_REST = Footprint({1: PROCESS}, dict.fromkeys([
    "corellm:num_requests_running", "corellm:num_requests_waiting", "corellm:num_requests_swapped",
    "corellm:kv_cache_usage_perc", "corellm:encoder_cache_usage_perc",
], 0.0), {})  # fmt: skip


@pytest.mark.parametrize("minutes", ["0.15", pytest.param("2", marks=pytest.mark.full)])
def test_row_34_a_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: str) -> None:
    """Nothing is wrong after mixed, broken and hostile load, and the drawing is there."""
    plot = tmp_path / "soak.png"
    assert command_line.main(["--minutes", minutes, "--clients", "6", "--plot", str(plot)]) == 0, (
        capsys.readouterr().out
    )
    assert capsys.readouterr().out.endswith("nothing is wrong\n")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(PROCESS, resident=430 << 20), "resident memory of the server: 430 MiB, 400 before"),
        (replace(PROCESS, shared=30 << 20), "resident memory of the server: 430 MiB, 400 before"),
        (replace(PROCESS, descriptors=39), "descriptors: 39, 30 before"),
        (replace(PROCESS, memfds=4), "memfds: 4, 0 before"),
        (replace(PROCESS, threads=33), "threads: 33, 20 before"),
    ],
)
def test_leaks_are_seen(after: ProcessFootprint, words: str) -> None:
    """What is held and was not before, and what the engine still has."""
    assert AT_REST.leaks(AT_REST) == []
    assert replace(AT_REST, processes={1: after}).leaks(AT_REST) == [words]
    many = {number: replace(PROCESS, kind="media", descriptors=0, threads=0) for number in range(2, 7)}
    assert replace(AT_REST, processes={1: PROCESS, **many}).leaks(AT_REST) == ["children: 5, 0 before"]
    for name in AT_REST.metrics:
        assert replace(AT_REST, metrics={**AT_REST.metrics, name: 0.5}).leaks(AT_REST) == [f"{name} is 0.5"]


def test_requests_that_are_missing_or_failed_are_seen() -> None:
    """Counts of clients and server must be the same, and no request may fail."""
    tally = Tally()
    for outcome in ("completed", "completed", "refused", "aborted"):
        tally.sent += 1
        tally.count("chat", outcome, "")
    server = {("/v1", "ok"): 3.0, ("/v1", "client_error"): 1.0, ("/metrics", "ok"): 9.0}
    assert tally.problems(server) == []
    assert tally.problems({**server, ("/v1", "server_error"): 1.0}) == [
        "of all: 4 here, 5 there",
        "failed: 0 here, 1 there",
    ]
    assert tally.problems({**server, ("/v1", "ok"): 1.0, ("/v1", "aborted"): 2.0}) == ["2 completed, 1 for the server"]
    tally.sent += 2
    tally.count("chat", "failed", "500 internal")
    assert tally.problems(server)[:2] == ["1 x chat: 500 internal", "sent: 6 here, 5 there"]


def test_changed_outputs_are_seen() -> None:
    """A canary with another output is a problem of its own."""
    report = Report(changed=["other"], footprints=[(0.0, AT_REST)])
    (problem,) = report.problems()
    assert problem.endswith("'other'")


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (b"", "failed"), (b"HTTP/1.1 200 OK\r\n\r\n{}", "completed"), (b"HTTP/1.1 200 OK\r\n\r\n{", "failed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n{}", "refused"), (b"HTTP/1.1 503 Unavailable\r\n\r\n{}", "failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n", "failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: [DONE]\n\n", "completed"),
    ],
)  # fmt: skip
def test_responses_are_judged(response: bytes, outcome: str) -> None:
    """A response that breaks off, or an error in a stream, is a failure."""
    assert judged(response)[0] == outcome
