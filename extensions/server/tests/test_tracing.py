"""Spans: what they tell of requests, where they go, and that no request notices a receiver that is down or hangs."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from corellm import AsyncLLM
from corellm.cli import main
from corellm_server.tracing import Tracing
from extensions.server.tests.conftest import Running, chat, image_part, in_engine, serving, user
from tests.fixtures import wait_until

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    """A server whose spans are kept in memory."""

    def __init__(self, running: Running) -> None:
        self.running, self.exporter = running, InMemorySpanExporter()
        running.service.tracing = Tracing(self.exporter, "tiny")

    def spans(self) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
        """The spans of the only request: the server's, and its children by name."""
        tracing = self.running.service.tracing
        assert tracing is not None
        wait_until(lambda: tracing._provider.force_flush() and bool(self.exporter.get_finished_spans()))
        spans = self.exporter.get_finished_spans()
        (server,) = (span for span in spans if span.kind.name == "SERVER")
        return server, {span.name: span for span in spans if span is not server}


@pytest.fixture
def traced(llm: AsyncLLM) -> Iterator[Traced]:
    """A traced server."""
    with serving(llm, max_n=2) as running:
        yield Traced(running)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_and_its_stages(traced: Traced, *, stream: bool) -> None:
    """One span of the server in the client's trace, and children that follow each other; nothing of the content."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    body = chat(user(image_part(3), "my private words"), stream=stream, top_p=0.5)
    response = traced.running.post(CHAT, body, headers=headers)
    assert response.status_code == 200
    server, stages = traced.spans()
    assert server.name == f"POST {CHAT}"
    assert server.context is not None
    assert server.parent is not None
    assert (f"{server.context.trace_id:032x}", f"{server.parent.span_id:016x}") == (TRACE, PARENT)
    attributes = dict(server.attributes or {})
    prompt_tokens = attributes.pop("gen_ai.usage.input_tokens")
    assert isinstance(prompt_tokens, int)
    assert prompt_tokens > 10
    assert isinstance(attributes.pop("gen_ai.response.time_to_first_chunk"), float)
    assert isinstance(attributes.pop("gen_ai.usage.cache_read.input_tokens"), int)
    assert attributes == {
        "http.request.method": "POST", "http.route": CHAT, "http.response.status_code": 200,
        "gen_ai.request.id": "mine", "corellm.outcome": "ok", "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "corellm", "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 6, "gen_ai.request.temperature": 0, "gen_ai.request.top_p": 0.5,
        "gen_ai.usage.output_tokens": 6, "gen_ai.response.finish_reasons": ("length",),
        **({"gen_ai.request.stream": True} if stream else {"gen_ai.request.stream": False}),
    }  # fmt: skip
    assert [*stages] == ["receive", "fetch", "process", "queue", "prefill", "decode"]
    times = [(span.start_time or 0, span.end_time or 0) for span in (*stages.values(),)]
    assert all(began <= ended for began, ended in times)
    assert sorted(times) == times
    assert (server.start_time or 0) <= times[0][0]
    assert times[-1][1] <= (server.end_time or 0)
    assert all(span.parent is not None and span.parent.span_id == server.context.span_id for span in stages.values())
    assert all("private" not in span.to_json() for span in traced.exporter.get_finished_spans())


@pytest.mark.parametrize("traceparent", [None, "nonsense", f"00-{'0' * 32}-{PARENT}-01", "ff" * 200])
def test_a_trace_of_its_own(traced: Traced, traceparent: str | None) -> None:
    """Without a parent, or with one that is not well-formed."""
    traced.running.post("/tokenize", {"prompt": "x"}, headers={"traceparent": traceparent} if traceparent else {})
    server, stages = traced.spans()
    assert server.parent is None
    assert [*stages] == ["receive", "process"]


def test_a_client_that_is_not_traced(traced: Traced) -> None:
    """Where the client's trace is not sampled, its requests have no spans; probes never have."""
    traced.running.post("/tokenize", {"prompt": "x"}, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    for path in ("/health", "/ready", "/metrics"):
        traced.running.get(path)
    traced.running.get("/version")
    assert traced.spans()[0].name == "GET /version"


def test_several_prompts(traced: Traced) -> None:
    """Their tokens add up, and each has a reason."""
    body = {"model": "tiny", "prompt": ["a", "b"], "n": 2, "max_tokens": 3, "temperature": 1, "ignore_eos": True}
    assert traced.running.post("/v1/completions", body).status_code == 200
    attributes = dict(traced.spans()[0].attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == 12
    assert attributes["gen_ai.response.finish_reasons"] == ("length",) * 4
    assert attributes["gen_ai.request.choice.count"] == 2
    assert attributes["gen_ai.operation.name"] == "text_completion"


def test_errors(traced: Traced) -> None:
    """A client's mistake has its code and is no error of the server; what it asked for is not repeated."""
    response = traced.running.post(CHAT, {**chat(user("x")), "model": "secret", "max_tokens": 10**40})
    assert response.status_code == 404
    server, _ = traced.spans()
    attributes = dict(server.attributes or {})
    assert (attributes["error.type"], attributes["corellm.outcome"]) == ("model_not_found", "client_error")
    assert server.status.status_code.name == "UNSET"
    assert "secret" not in server.to_json()
    assert "gen_ai.request.max_tokens" not in attributes


def test_another_method(traced: Traced) -> None:
    """Names of spans are of a fixed set: no client makes new ones."""
    httpx.request("SECRET", traced.running.url + "/secret")
    server, _ = traced.spans()
    assert server.name == "_OTHER other"
    assert "secret" not in server.to_json().lower()


def test_a_client_that_leaves(traced: Traced) -> None:
    """Its span says so, and has the stages that it got to."""
    body = chat(user("go on"), max_tokens=300, ignore_eos=True, stream=True)
    stall = threading.Event()
    with (
        httpx.Client(base_url=traced.running.url, timeout=600) as client,
        client.stream("POST", CHAT, json=body) as response,
    ):
        next(response.iter_lines())
        in_engine(traced.running.service.client, lambda _: stall.wait(600))
    wait_until(lambda: len(traced.running.service.intake) == 0)
    stall.set()
    server, stages = traced.spans()
    attributes = dict(server.attributes or {})
    assert attributes["corellm.outcome"] == "aborted"
    assert attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert 0 < attributes["gen_ai.usage.output_tokens"] < 300
    assert "decode" in stages


def test_an_internal_error(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the server, and the stage in which it happened is there."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(traced.running.service.client.input_processor, "process", fail)
    assert traced.running.post("/tokenize", {"prompt": "x"}).status_code == 500
    server, stages = traced.spans()
    assert server.status.status_code.name == "ERROR"
    assert dict(server.attributes or {})["error.type"] == "internal_error"
    assert "process" in stages


# --- the way out ----------------------------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A receiver of OTLP over HTTP: its URL, and what it got."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/x-protobuf"
            received.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        server.shutdown()
        thread.join()


def test_a_real_receiver(llm: AsyncLLM, receiver: tuple[str, list[ExportTraceServiceRequest]]) -> None:
    """The last spans are sent when the server ends, with its name and version."""
    url, received = receiver
    with serving(llm) as running:
        running.service.tracing = Tracing.to_endpoint(url, "tiny")
        assert running.post(CHAT, chat(user("x"))).status_code == 200
    (resource,) = (resource for request in received for resource in request.resource_spans)
    told = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert told["service.name"] == "corellm"
    assert "service.version" in told
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == sorted([f"POST {CHAT}", "receive", "fetch", "process", "queue", "prefill", "decode"])


class HangingExporter(InMemorySpanExporter):
    """Does not return until told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_return = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.asked.set()
        self.may_return.wait(600)
        return super().export(spans)


def test_a_receiver_that_hangs(llm: AsyncLLM) -> None:
    """Requests are served while it does, more than its queue holds; and the server ends."""
    exporter = HangingExporter()
    with serving(llm) as running:
        running.service.tracing = tracing = Tracing(exporter, "tiny")
        with running.http() as client:
            for _ in range(600):
                assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200
        assert exporter.asked.wait(600)
        assert not exporter.get_finished_spans()
    assert running.statuses == [0]
    exporter.may_return.set()
    tracing._provider.shutdown()


def test_a_receiver_that_is_down(llm: AsyncLLM) -> None:
    """Requests are served, and the server ends."""
    exporter = OTLPSpanExporter(endpoint="http://127.0.0.1:9/v1/traces", timeout=1)
    with serving(llm) as running:
        running.service.tracing = tracing = Tracing(exporter, "tiny")
        assert running.post(CHAT, chat(user("x"))).status_code == 200
        tracing._provider.force_flush()
        assert running.post(CHAT, chat(user("x"))).status_code == 200
    assert running.statuses == [0]


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that installs it is named before a model is loaded."""
    monkeypatch.delitem(sys.modules, "corellm_server.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["serve", "demo", "--otlp-traces-endpoint", "http://localhost:4318/v1/traces"]) == 1
    assert "pip install opentelemetry-sdk" in capsys.readouterr().err


def test_not_imported_unless_turned_on(tmp_path: Path) -> None:
    """Neither tracing nor the exporter is imported with the server."""
    code = (
        "import sys, corellm_server.running, corellm.engine.process.client, corellm_server.commands.serve\n"
        "assert not {'corellm_server.tracing', 'opentelemetry.exporter', 'opentelemetry.sdk'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
