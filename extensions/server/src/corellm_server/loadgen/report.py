"""Numbers of a measurement: percentiles, throughput, goodput, failures; as JSON and as text. Knows results only.

Definitions are those of the field's load generators (`vllm bench serve`, GenAI-Perf): the first token is the first part
with text, empty ones do not count; time per output token leaves the first out; throughputs are of succeeded requests,
from the first one sent to the last one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings

PERCENTILES = (50, 90, 99)
DURATIONS = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "gap_ms": "between parts",
    "latency_ms": "whole request",
}


def summarize(settings: LoadSettings, results: Sequence[RequestResult]) -> dict[str, Any]:
    """The numbers; percentiles are None where no request has the duration."""
    done = [result for result in results if result.error is None]
    duration = max(result.ended for result in results) - min(result.sent for result in results)
    good = sum(result.is_good(settings.slo_ttft, settings.slo_tpot) for result in results)
    tokens = sum(result.output_tokens for result in done)
    return {
        "num_requests": len(results),
        "num_succeeded": len(done),
        "errors": dict(Counter(result.error for result in results if result.error).most_common()),
        "duration_s": duration,
        "request_throughput": len(done) / duration,
        "output_tokens": tokens,
        "output_throughput": tokens / duration,
        "prompt_tokens": sum(result.prompt_tokens or 0 for result in done),
        "goodput": good / duration,
        "good_share": good / len(results),
        "max_lag_ms": max(result.sent - result.scheduled for result in results) * 1000,
        "ttft_ms": _percentiles([result.ttft for result in done]),
        "tpot_ms": _percentiles([result.tpot for result in done]),
        "gap_ms": _percentiles([gap for result in done for gap in result.gaps]),
        "latency_ms": _percentiles([result.latency for result in done]),
    }


def _percentiles(seconds: Sequence[float | None]) -> dict[str, float | None]:
    """Percentiles in milliseconds, interpolated between the two nearest values."""
    known = sorted(value * 1000 for value in seconds if value is not None)
    return {f"p{percent}": _percentile(known, percent / 100) if known else None for percent in PERCENTILES}


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def as_json(settings: LoadSettings, model: str, results: Sequence[RequestResult]) -> dict[str, Any]:
    """Everything, for programs: settings without the key, numbers, and each request's times."""
    shown = {name: value for name, value in asdict(settings).items() if name != "api_key"}
    shown["rate"] = str(settings.rate) if settings.rate == float("inf") else settings.rate  # JSON has no infinity
    return {
        "settings": shown | {"model": model},
        "summary": summarize(settings, results),
        "requests": [asdict(result) for result in results],
    }


def as_text(settings: LoadSettings, model: str, results: Sequence[RequestResult]) -> str:
    """The numbers, for people."""
    numbers = summarize(settings, results)
    lines = [
        f"model      {model}",
        f"requests   {numbers['num_requests']}, of which {numbers['num_succeeded']} succeeded, in "
        f"{numbers['duration_s']:.1f} s: {numbers['request_throughput']:.2f} requests/s (sent at {settings.rate:g})",
        f"output     {numbers['output_tokens']} tokens, {numbers['output_throughput']:.1f} tokens/s",
    ]
    if limits := _limits(settings):
        lines.append(
            f"goodput    {numbers['goodput']:.2f} requests/s, {numbers['good_share']:.1%} of all, with {limits}"
        )
    lines += ["", f"{'milliseconds':<24}" + "".join(f"{f'p{percent}':>10}" for percent in PERCENTILES)]
    for key, name in DURATIONS.items():
        values = numbers[key].values()
        lines.append(f"{name:<24}" + "".join(f"{'-' if value is None else f'{value:.1f}':>10}" for value in values))
    for error, count in numbers["errors"].items():
        example = next(result.message for result in results if result.error == error)
        lines.append(f"{'' if lines[-1].startswith('failed') else chr(10)}failed     {count} x {error}"
                     + (f", e.g. {example}" if example else ""))  # fmt: skip
    if numbers["max_lag_ms"] > 100:
        lines.append(f"\nRequests were sent up to {numbers['max_lag_ms']:.0f} ms late: this machine is too slow for "
                     "this load, so the server got less.")  # fmt: skip
    return "\n".join(lines)


def _limits(settings: LoadSettings) -> str:
    limits = {"the first token": settings.slo_ttft, "each further one": settings.slo_tpot}
    return ", ".join(f"{name} within {limit:g} ms" for name, limit in limits.items() if limit is not None)
