"""Servers of models that pool, as operators see them: batches, metrics, spans, the OpenAPI document, faults."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from corellm.engine.process.client import ProcessLLM
from corellm_server.tracing import Tracing
from extensions.server.tests import faulty
from extensions.server.tests.batch.conftest import Batch, line, results, written
from extensions.server.tests.command import command
from extensions.server.tests.conftest import MODEL, Running, image_part, serving, user
from extensions.server.tests.footprint import Footprint, assert_no_leak
from extensions.server.tests.generated_requests import assert_as_documented
from extensions.server.tests.pooling.conftest import ENGINE, ask
from extensions.server.tests.test_metrics import scrape, total
from extensions.server.tests.test_stage_faults import error_of, showing
from tests.fixtures import wait_until

EMBED = "/v1/embeddings"


def test_a_batch_of_all_endpoints(embedder: Running, tmp_path: Path) -> None:
    """Each result is the server's response, in the order of the lines; a wrong line is one failure."""
    bodies: list[tuple[str, dict[str, Any]]] = [(EMBED, {"input": f"text {number}"}) for number in range(20)]
    bodies += [
        (EMBED, {"messages": user(image_part(1), "what?"), "dimensions": 9}),
        (EMBED, {"input": ["a", "b"], "encoding_format": "base64"}),
        ("/v1/score", {"text_1": "a", "text_2": ["b", image_part(2)]}),
        ("/rerank", {"query": "a", "documents": ["b", "a"]}),
        ("/pooling", {"input": "a", "task": "token_embed"}),
        ("/classify", {"input": "a"}),
    ]
    batch = Batch(embedder.service.client, tmp_path)
    written(batch.input, (line(f"r{i}", {"model": MODEL, **body}, url) for i, (url, body) in enumerate(bodies)))
    progress = batch.run()
    assert progress.failures == {"HTTP 400": 1}
    assert re.search(r"tokens +\d+ of .* prompt tokens/s", progress.summary())
    got = results(batch.output)
    assert [one["custom_id"] for one in got] == [f"r{i}" for i in range(len(bodies))]
    for number in (0, 19, 20):
        (found,) = got[number]["response"]["body"]["data"]
        (wanted,) = ask(embedder, EMBED, **bodies[number][1])["data"]
        assert found["embedding"] == pytest.approx(wanted["embedding"], abs=1e-6)


def test_what_requests_count(embedder_apart: Running) -> None:
    """Routes, outcomes, lengths of prompts and times; each input is a prompt."""
    with serving(embedder_apart.service.client) as running:
        ask(running, EMBED, input=["a", "b", "c"])
        ask(running, "/v2/rerank", query="a", documents=["b"])
        running.post(EMBED, {"model": MODEL})
        wait_until(lambda: total(scrape(running), "requests_total") >= 3)
        samples = scrape(running)
    assert total(samples, "requests_total", route=EMBED, outcome="ok") == 1
    assert total(samples, "requests_total", route=EMBED, outcome="client_error") == 1
    assert total(samples, "requests_total", route="/v2/rerank", outcome="ok") == 1
    assert total(samples, "request_prompt_tokens_count") == 5
    assert total(samples, "e2e_request_latency_seconds_count") == 2
    assert total(samples, "request_generation_tokens_count") == 0


def test_spans(embedder_apart: Running) -> None:
    """A request has its stages in the engine, and its tokens; nothing of what it says."""
    exporter = InMemorySpanExporter()
    with serving(embedder_apart.service.client) as running:
        tracing = running.service.tracing = Tracing(exporter, MODEL)
        usage = ask(running, EMBED, input="my private words")["usage"]
        wait_until(lambda: tracing._provider.force_flush() and len(exporter.get_finished_spans()) > 1)
        spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {"queue", "prefill"} <= spans.keys()
    attributes = dict(spans[f"POST {EMBED}"].attributes or {})
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert "private" not in str(attributes)


EMBEDDING, SCORING = "embeddings|pooling", "classify|score|rerank"
"""Endpoints of pooling."""


@pytest.mark.parametrize(
    ("model", "paths", "examples"),
    [
        ("embedder", EMBEDDING, 3),
        ("classifier", SCORING, 3),
        *(pytest.param(m, f"{EMBEDDING}|{SCORING}", 200, marks=pytest.mark.full) for m in ("embedder", "classifier")),
    ],
)
def test_the_document(model: str, paths: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Generated requests to the endpoints of pooling get documented responses; what is wrong is refused.

    Those that the model serves; with `-m full` the others, too, which it refuses.
    """
    assert_as_documented(request.getfixturevalue(model), tmp_path, examples, paths=paths)


STAGES = {
    "parsing": showing(size=faulty.PARSED),
    "processing": showing(size=faulty.PROCESSED),
    "encoder": showing(colour=faulty.ENCODED),
    "merging": showing(colour=faulty.MERGED),
}


def test_rows_23_and_24_faults_cost_their_requests(tiny_llava: Path, tmp_path: Path) -> None:
    """500 with an id that the log has, in every stage of embedding; others have their results; nothing is left.

    So is one whose forward pass fails, and the next one runs; three such steps in a row end the server.
    """
    good = {"model": MODEL, "messages": user(image_part(1), "what?")}
    options: dict[str, Any] = {"convert": "embed", "block_size": 8, "max_num_seqs": 4}
    environment = faulty.install(tmp_path)
    with command(tiny_llava, tmp_path, environment, **options) as running:
        for _ in range(4):
            wanted = running.http.post(EMBED, json=good).json()["data"][0]["embedding"]
        before = Footprint.of(running.process.pid, running.http)
        for stage, body in STAGES.items():
            status, error = error_of(running.http, EMBED, {"model": MODEL, "messages": body["messages"]})
            assert (status, error["code"]) == (500, "internal_error"), stage
            assert faulty.SECRET not in error["message"]
            incident = re.fullmatch(r"internal error (\w+);.*", error["message"])
            assert incident is not None
            assert incident[1] in running.log.read_text()
            found = running.http.post(EMBED, json=good).json()["data"][0]["embedding"]
            assert found == pytest.approx(wanted, abs=1e-6)
        assert_no_leak(running.process.pid, running.http, before)
        statuses = []
        for count in (1, 0, 1_000_000):
            faulty.fail_steps(Path(environment[faulty.FAILING_STEPS]), count)
            statuses.append(running.http.post(EMBED, json={"model": MODEL, "input": "a"}).status_code)
        assert statuses == [500, 200, 500]
        second, third = (running.http.post(EMBED, json={"model": MODEL, "input": "a"}) for _ in range(2))
        assert (second.status_code, second.json()["error"]["code"]) == (500, "internal_error")
        assert third.json()["error"]["code"] == "engine_dead"
        assert running.process.wait(600) == 1
        assert "in a row" in running.log.read_text()


def test_row_25_a_killed_engine(tiny_llava: Path) -> None:
    """Every request whose inputs it has fails at once, nothing is left of them, and the exit status is 1."""
    llm = ProcessLLM(str(tiny_llava), convert="embed", **ENGINE)
    bodies = [
        (EMBED, {"input": ["a", "b", "c"]}), (EMBED, {"messages": user(image_part(1), "what?")}),
        ("/pooling", {"input": "a", "task": "token_embed"}), ("/rerank", {"query": "a", "documents": ["b", "c"]}),
    ]  # fmt: skip
    with serving(llm) as running, ThreadPoolExecutor(len(bodies)) as pool:
        os.kill(llm.pid, signal.SIGSTOP)
        sent = [pool.submit(running.post, path, {"model": MODEL, **body}) for path, body in bodies]
        wait_until(lambda: len(llm.engine.link._requests) == 8)
        os.kill(llm.pid, signal.SIGKILL)
        responses = [future.result(600) for future in sent]
        assert {(one.status_code, one.json()["error"]["code"]) for one in responses} == {(503, "engine_dead")}
        wait_until(lambda: not running.service.intake.num_bytes)
    assert running.statuses == [1]
    llm.close()
