"""`/metrics`: what a scrape of a server has, by Prometheus's own parser, and that the dashboard reads only that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, image_part, serving, user
from tests.fixtures import wait_until

CHAT = "/v1/chat/completions"
DASHBOARD = Path(__file__).parents[3] / "docs" / "operate" / "deploy" / "grafana.json"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(running: Running) -> Samples:
    """The samples of a scrape by name, with their labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(running.get("/metrics").text):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(value for found, value in samples[f"corellm:{name}"] if labels.items() <= found.items())


@pytest.fixture
def server(llm: AsyncLLM) -> Iterator[Running]:
    """A server that has counted nothing yet."""
    with serving(llm, api_key="key") as running:
        yield running


def test_what_requests_count(server: Running) -> None:
    """Outcomes, lengths, times and caches move by what was done."""
    key = {"Authorization": "Bearer key"}
    with httpx.Client(base_url=server.url, headers=key, timeout=600) as client:
        server.get = lambda path, **more: client.get(path, **more)  # type: ignore[method-assign]
        before = scrape(server)
        for _ in range(2):
            assert client.post(CHAT, json=chat(user(image_part(77), "what is this?"))).status_code == 200
        assert client.post(CHAT, json={}).status_code == 400
        assert client.post(CHAT, json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
        wait_until(lambda: total(scrape(server), "requests_total", route=CHAT, outcome="ok") == 2)
        after = scrape(server)

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - (total(before, name, **labels) if f"corellm:{name}" in before else 0)

    assert grown("requests_total", route=CHAT, outcome="client_error") == 1
    assert grown("requests_total", route="other", outcome="client_error") == 1
    for histogram in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                      "request_processing_seconds", "request_prompt_tokens", "request_generation_tokens"):  # fmt: skip
        assert grown(f"{histogram}_count") == 2
        assert grown(f"{histogram}_sum") > 0
    assert grown("request_generation_tokens_sum") == grown("generation_tokens_total") == 12
    assert grown("request_prompt_tokens_sum") == grown("prompt_tokens_total") > 20
    assert (grown("mm_cache_queries_total"), grown("mm_cache_hits_total")) == (2, 1)
    assert grown("prefix_cache_hits_total") > 0
    assert 0 <= grown("encoder_cache_hits_total") < grown("encoder_cache_queries_total")
    assert 0 < total(after, "mm_cache_usage_perc") <= 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "encoder_cache_usage_perc"):
        assert total(after, name) == 0
    assert grown("num_preemptions_total") == 0


def test_labels_are_of_fixed_sets(running: Running) -> None:
    """Nothing of a request becomes a label: neither its URL, nor its method, model or id."""
    for path in ("/secret", "/v1/models/secret", "/v1/chat/completions/secret"):
        running.get(path, headers={"X-Request-Id": "secret"})
    running.post(CHAT, {**chat(user("secret")), "model": "secret"})
    httpx.request("SECRET", running.url + CHAT)
    wait_until(lambda: total(scrape(running), "requests_total", route="/v1/models/{model:path}") > 0)
    text = running.get("/metrics").text
    assert "secret" not in text.lower()
    routes = set(running.get("/openapi.json").json()["paths"]) | {"other", "/openapi.json"}
    outcomes = {"ok", "aborted", "client_error", "unavailable", "server_error"}
    for samples in scrape(running).values():
        for labels, _ in samples:
            assert labels.keys() <= {"le", "route", "outcome"}
            assert labels.get("route", "other").replace(":path", "") in routes
            assert labels.get("outcome", "ok") in outcomes


def test_the_dashboard_reads_what_is_there(running: Running) -> None:
    """Each expression's metrics are in a scrape, with the labels that it groups by; its brackets close."""
    assert running.post(CHAT, chat(user("x"))).status_code == 200
    wait_until(lambda: "corellm:requests_total" in scrape(running))
    samples = scrape(running)
    families = text_string_to_metric_families(running.get("/metrics").text)
    empty = {f"{family.name}_total" for family in families if not family.samples}  # by position, without drafts
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 20
    for expression in expressions:
        names = re.findall(r"corellm:\w+", expression)
        assert names
        assert set(names) <= samples.keys() | empty, expression
        grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
        for name in names:
            assert empty & {*names} or grouped <= samples[name][0][0].keys(), expression
            assert ("histogram_quantile(" in expression) == name.endswith("_bucket")
            is_counted = name.endswith(("_total", "_bucket"))
            assert (f"rate({name}{{" in expression) == is_counted, expression  # a gauge has no rate
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing)
    assert MODEL not in " ".join(expressions)
