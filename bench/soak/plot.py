"""Draws a soak: canaries' latency, requests, memory and descriptors over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.soak.run import Report
from bench.soak.tally import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = ("server", "engine", "media", "templates")


def save_plot(report: Report, path: str) -> None:
    """Write the drawing to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    (latency, requests), (memory, counts) = figure.subplots(2, 2)
    _draw_latency(latency, report)
    _draw_requests(requests, report)
    times = [when for when, _ in report.footprints]
    for kind in _KINDS:
        memory.plot(times, [seen.resident(kind) / 2**20 for _, seen in report.footprints], label=kind)
    memory.set(ylabel="resident memory, MiB", ylim=(0, None))
    for what in ("descriptors", "memfds", "threads", "children"):
        counts.plot(times, [seen.count(what) for _, seen in report.footprints], label=what)
    counts.set(ylabel="held by all processes", ylim=(0, None))
    for axes in (latency, requests, memory, counts):
        axes.set_xlabel("time (s)")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def _draw_latency(axes: Axes, report: Report) -> None:
    points = [(when, seconds * 1000) for when, seconds in report.canaries if when >= 0]
    axes.plot([x for x, _ in points], [y for _, y in points], ".", markersize=3, label="canaries")
    for name, (_, p99) in report.latencies().items():
        axes.axhline(p99 * 1000, linestyle="--", color="grey" if name == "idle" else "black", label=f"p99 {name}")
    axes.set(ylabel="latency, ms", yscale="log")


def _draw_requests(axes: Axes, report: Report) -> None:
    for outcome in OUTCOMES:
        times: Sequence[float] = sorted(when for when, ended in report.outcomes if ended == outcome)
        axes.step(times, range(1, len(times) + 1), where="post", label=f"{outcome}: {len(times)}")
    axes.set(ylabel="requests that ended", ylim=(0, None))
