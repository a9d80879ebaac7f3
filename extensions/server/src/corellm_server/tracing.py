"""Spans of requests for OpenTelemetry: one of the server per request, and its stages as children.

Knows exchanges and OpenTelemetry's conventions; imported only where tracing is on. Spans are made of a request's times
once it has ended, without anything that it says; a thread of OpenTelemetry's exports them, and drops what it cannot.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from corellm import __version__
from corellm.outputs import RequestOutput
from corellm_server.exchange import Exchange
from corellm_server.logs import PROBES
from corellm_server.stages import Stage

if TYPE_CHECKING:
    from corellm_pooling.results import PoolingRequestOutput

_CLOSE_SECONDS = 1.0
"""Time for the spans of the last requests to get out; a receiver that hangs keeps no server from ending."""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/audio/transcriptions": "chat",
    "/v1/audio/translations": "chat",
    "/v1/embeddings": "embeddings",
}
_PARAMETERS = {
    "max_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "temperature": "temperature", "top_p": "top_p", "n": "choice.count", "stream": "stream",
}  # fmt: skip
"""Numbers of a request, and their names after `gen_ai.request.`"""
_Attributes: TypeAlias = dict[str, Any]


class Tracing:
    """Makes spans of exchanges that ended.

    Args:
        exporter: sends spans, in a thread of its own.
        model: the name of the model in spans.
    """

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        self._model = model
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "corellm"}
        resource = Resource.create({"service.version": __version__, **named})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("corellm", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_endpoint(cls, url: str, model: str) -> Tracing:
        """Tracing to an OTLP receiver (HTTP, protobuf) at a URL."""
        return cls(OTLPSpanExporter(endpoint=url), model)

    def ended(self, exchange: Exchange, route: str) -> None:
        """Make the spans of an exchange; `route` is as declared. Probes have none."""
        if route in PROBES:
            return
        to_epoch = time.time() - time.monotonic()
        carrier = {
            name: exchange.headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in exchange.headers
        }
        span = self._tracer.start_span(
            f"{_method(exchange)} {route}", self._propagator.extract(carrier), SpanKind.SERVER,
            self._attributes(exchange, route), start_time=_nanoseconds(exchange.began + to_epoch),
        )  # fmt: skip
        if span.is_recording():
            if exchange.failure is not None and exchange.failure.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            within = set_span_in_context(span)
            for name, began, ended in [*exchange.stages, *_stages_in_engine(exchange.outputs)]:
                child = self._tracer.start_span(name, within, start_time=_nanoseconds(began + to_epoch))
                child.end(_nanoseconds(ended + to_epoch))
        span.end()

    def _attributes(self, exchange: Exchange, route: str) -> _Attributes:
        attributes: _Attributes = {
            "http.request.method": _method(exchange),
            "http.route": route,
            "http.response.status_code": exchange.status,
            "gen_ai.request.id": exchange.request_id,
            "corellm.outcome": exchange.outcome,
        }
        if exchange.failure is not None:
            attributes["error.type"] = exchange.failure.code or str(exchange.failure.status)
        if route in _OPERATIONS:
            attributes["gen_ai.operation.name"] = _OPERATIONS[route]
            attributes["gen_ai.provider.name"] = "corellm"
            attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = exchange.model or self._model
            if exchange.outputs:
                attributes |= _parameters(exchange.body) | _usage(exchange)
        return attributes

    def close(self) -> None:
        """Send the last spans; returns after a second even if they cannot be sent."""
        closing = threading.Thread(target=self._provider.shutdown, name="corellm-tracing", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


def _method(exchange: Exchange) -> str:
    """One of the methods that are served, or the conventions' word for all others."""
    return exchange.method if exchange.method in ("GET", "POST") else "_OTHER"


def _parameters(body: dict[str, Any]) -> _Attributes:
    return {f"gen_ai.request.{name}": body[field] for field, name in _PARAMETERS.items() if body.get(field) is not None}


def _usage(exchange: Exchange) -> _Attributes:
    first = [o.metrics.first_token_ts for o in exchange.outputs if o.metrics and o.metrics.first_token_ts is not None]
    completions = [one for output in exchange.outputs if isinstance(output, RequestOutput) for one in output.outputs]
    reasons = [completion.finish_reason or "abort" for completion in completions]
    return {
        "gen_ai.usage.input_tokens": exchange.num_prompt_tokens,
        "gen_ai.usage.output_tokens": exchange.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": sum(output.num_cached_tokens for output in exchange.outputs),
        **({"gen_ai.response.finish_reasons": reasons} if reasons else {}),
        **({"gen_ai.response.time_to_first_chunk": min(first) - exchange.began} if first else {}),
    }


def _stages_in_engine(outputs: Sequence[RequestOutput | PoolingRequestOutput[Any]]) -> Iterator[Stage]:
    """The stages of each prompt that the engine has begun."""
    for output in outputs:
        times = output.metrics
        if times is None or times.scheduled_ts is None:
            continue
        yield Stage("queue", times.queued_ts, times.scheduled_ts)
        if times.first_token_ts is not None and times.last_token_ts is not None:
            yield Stage("prefill", times.scheduled_ts, times.first_token_ts)
            yield Stage("decode", times.first_token_ts, times.last_token_ts)
        elif not isinstance(output, RequestOutput) and times.finished_time is not None:
            yield Stage("prefill", times.scheduled_ts, times.finished_time)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
