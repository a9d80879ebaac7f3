"""Prometheus metrics: the server's own, and the engine's by the names of `METRIC_DESCRIPTIONS`.

Labels have fixed sets of values: nothing that a client sends becomes one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

from corellm import serving
from corellm.outputs import RequestOutput
from corellm_server.exchange import Exchange

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class ServerMetrics:
    """Counts requests, tokens and seconds of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._engine: Sequence[tuple[Mapping[str, str], Sequence[serving.Metric]]] = ()
        self._requests = Counter(
            "corellm:requests", "Requests by route and outcome", ["route", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "corellm:e2e_request_latency_seconds", "From arrival to the end", buckets=_SECONDS, registry=registry
        )
        self._first = Histogram(
            "corellm:time_to_first_token_seconds",
            "From arrival to the first token",
            buckets=_SECONDS,
            registry=registry,
        )
        self._between = Histogram(
            "corellm:inter_token_latency_seconds", "Mean between the tokens of a request", buckets=_TOKEN_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._processing = Histogram(
            "corellm:request_processing_seconds", "Preparing a request's prompt and media", buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._prompt = Histogram("corellm:request_prompt_tokens", "Prompt lengths", buckets=_TOKENS, registry=registry)
        self._output = Histogram(
            "corellm:request_generation_tokens", "Output lengths", buckets=_TOKENS, registry=registry
        )
        self._num_kept = Gauge("corellm:kept_responses", "Responses that are kept", registry=registry)
        self._kept_bytes = Gauge("corellm:kept_responses_bytes", "Bytes of kept responses", registry=registry)
        registry.register(self)

    def prepared(self, exchange: Exchange, num_prompt_tokens: int) -> None:
        """Count a prompt that is ready for the engine."""
        exchange.num_prompt_tokens += num_prompt_tokens
        self._processing.observe(time.monotonic() - exchange.began)
        self._prompt.observe(num_prompt_tokens)

    def finished(self, exchange: Exchange, output: RequestOutput, num_tokens: int) -> None:
        """Count a prompt whose completions are finished."""
        self._output.observe(num_tokens)
        times = output.metrics
        if times is None or times.first_token_ts is None:
            return
        self._first.observe(times.first_token_ts - exchange.began)
        per_completion = num_tokens / len(output.outputs)
        if times.last_token_ts is not None and per_completion > 1:
            self._between.observe((times.last_token_ts - times.first_token_ts) / (per_completion - 1))

    def ended(self, exchange: Exchange, route: str) -> None:
        """Count an exchange; `route` is as declared."""
        self._requests.labels(route, exchange.outcome).inc()
        if exchange.outcome == "ok" and exchange.outputs:
            self._seconds.observe(time.monotonic() - exchange.began)

    def kept_responses(self, number: int, num_bytes: int) -> None:
        """Note which responses are kept now."""
        self._num_kept.set(number)
        self._kept_bytes.set(num_bytes)

    def text(self, engine_metrics: Sequence[tuple[Mapping[str, str], Sequence[serving.Metric]]]) -> bytes:
        """All metrics in Prometheus's format.

        Args:
            engine_metrics: of each engine, with the labels that tell it from others; an only one has none.
        """
        self._engine = engine_metrics
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """The engines' metrics as of the last `text`; those of several have labels."""
        families: dict[str, Metric] = {}
        for own, metrics in self._engine:
            for metric in metrics:
                values = {"": metric.value}
                if isinstance(metric, serving.Vector):
                    values = {str(position): value for position, value in enumerate(metric.values)}
                is_counter = isinstance(metric, (serving.Counter, serving.Vector))
                described = (metric.name, serving.METRIC_DESCRIPTIONS[metric.name])
                family = families.setdefault(metric.name, Metric(*described, "counter" if is_counter else "gauge"))
                for position, value in values.items():
                    labels = {**own, **({"position": position} if position else {})}
                    family.add_sample(metric.name + ("_total" if is_counter else ""), labels, value)
        yield from families.values()
