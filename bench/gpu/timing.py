"""How long device work takes: medians of many runs, over inputs that take turns so that no cache holds them.

Work is recorded as a CUDA graph, all calls one behind the other, and the graph's replays are timed by events: what is
measured is the device's work without the host's, as the engine's decode steps have it. What cannot be recorded is timed
as it is called.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from corellm.worker.graphs import NotRecordable, no_waiting

Call = Callable[[], object]

_LEAST_PASS = 2.0
"""Milliseconds of a pass over all calls: of shorter ones the beginning would count."""
_MEASURED = 150.0
"""Milliseconds of a measurement, about."""


@dataclass(frozen=True)
class Timing:
    """How long a call takes."""

    ms: float
    recorded: bool
    """Whether it was timed as a graph, without the host's part."""

    def share_of(self, floor_ms: float) -> dict[str, float | str]:
        """Figures of it beside the time that nothing could be faster than."""
        figures: dict[str, float | str] = {"ms": self.ms, "floor_ms": floor_ms, "share": floor_ms / self.ms}
        return figures if self.recorded else {**figures, "graph": "none"}


def num_sets(bytes_per_call: int, device: torch.device, *, most: int = 64) -> int:
    """How many sets of inputs hold four times what the L2 cache does."""
    if device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(most, max(1, -(-4 * cache // max(1, bytes_per_call))))


def timed(calls: Sequence[Call], device: torch.device, *, warm_up: int = 2) -> Timing:
    """Median time of a call.

    Args:
        calls: the same work on different inputs.
        device: of the inputs.
        warm_up: calls before anything is recorded or timed, at least one.
    """
    for call in calls[: max(1, warm_up)]:
        call()
    if device.type != "cuda":
        return Timing(_on_the_host(calls), recorded=True)
    torch.cuda.synchronize(device)
    once = _pass(calls)
    turns = max(1, round(_LEAST_PASS / max(once, 1e-3)))
    if turns * len(calls) > 512:
        turns = max(1, 512 // len(calls))
    repeats = int(min(50, max(5, _MEASURED / (turns * once))))
    try:
        with no_waiting():
            calls[0]()
    except NotRecordable:  # then it is timed with the host's part
        return Timing(statistics.median(_pass(calls) for _ in range(repeats)) / len(calls), recorded=False)
    replay = _recorded([*calls] * turns)
    replay()
    passes = max(1, round(_LEAST_PASS / max(_events(replay), 1e-3)))  # without the host they may be much shorter
    per_pass = statistics.median(_pass([replay] * passes) for _ in range(repeats)) / passes
    return Timing(per_pass / (turns * len(calls)), recorded=True)


def _on_the_host(calls: Sequence[Call]) -> float:
    spent = []
    for call in calls:
        start = time.perf_counter()
        call()
        spent.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spent)


def _recorded(calls: Sequence[Call]) -> Call:
    """Replays all calls; their results are kept while recording, so that each is written to memory of its own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    del kept
    return graph.replay


def _pass(calls: Sequence[Call]) -> float:
    def run() -> None:
        for call in calls:
            call()

    return _events(run)


def _events(call: Call) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
