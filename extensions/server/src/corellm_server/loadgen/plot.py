"""Draws a measurement: what clients waited for, over time and as distributions, and how many waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED, _GREY = "#2060b0", "#c03030", "#808080"


def save_plot(settings: LoadSettings, model: str, results: Sequence[RequestResult], path: str) -> None:
    """Write the drawing to a file; its ending gives the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(f"{model}: {len(results)} requests, {settings.rate:g} per second")
    (first, in_flight), (first_shares, further_shares) = figure.subplots(2, 2)
    done = [result for result in results if result.error is None]
    _draw_first_tokens(first, settings, results)
    _draw_in_flight(in_flight, results)
    _draw_shares(first_shares, [r.ttft for r in done], settings.slo_ttft, "time to first token (ms)")
    _draw_shares(further_shares, [r.tpot for r in done], settings.slo_tpot, "time per output token (ms)")
    for axes in (first, in_flight, first_shares, further_shares):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_first_tokens(axes: Axes, settings: LoadSettings, results: Sequence[RequestResult]) -> None:
    """Each request's time to first token, over when it was sent; failures at the bottom."""
    points = [
        (result.sent, result.ttft * 1000) for result in results if result.error is None and result.ttft is not None
    ]
    failed = [result.sent for result in results if result.error]
    axes.plot([x for x, _ in points], [y for _, y in points], ".", color=_BLUE)
    if failed:
        axes.plot(failed, [0.0] * len(failed), "x", color=_RED, label=f"{len(failed)} failed")
        axes.legend()
    if settings.slo_ttft is not None:
        axes.axhline(settings.slo_ttft, color=_GREY, linestyle="--")
    axes.set(xlabel="sent (s)", ylabel="time to first token (ms)", ylim=(0, None))


def _draw_in_flight(axes: Axes, results: Sequence[RequestResult]) -> None:
    """How many requests had been sent and had not ended."""
    changes = sorted([(r.sent, 1) for r in results] + [(r.ended, -1) for r in results])
    counts, total = [], 0
    for _, change in changes:
        total += change
        counts.append(total)
    axes.step([time for time, _ in changes], counts, where="post", color=_BLUE)
    axes.set(xlabel="time (s)", ylabel="requests in flight", ylim=(0, None))


def _draw_shares(axes: Axes, seconds: Sequence[float | None], limit: float | None, name: str) -> None:
    """Which share of requests had at most that duration."""
    values = sorted(value * 1000 for value in seconds if value is not None)
    if values:
        axes.ecdf(values, color=_BLUE)
    if limit is not None:
        axes.axvline(limit, color=_GREY, linestyle="--", label="limit")
        axes.legend(loc="lower right")
    axes.set(xlabel=name, ylabel="share of requests", xlim=(0, None))
