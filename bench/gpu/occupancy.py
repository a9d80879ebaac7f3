"""How much of the time the GPU works, and on what, by torch's profiler.

Busy is the union of everything the profiler saw on the device; idle is the rest between the first and the last of it.
Gaps below 10 microseconds are the device's own way from one kernel to the next; idle without them is the host's doing.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_OWN_GAP = 10.0
"""Microseconds."""


def occupancy(step: Callable[[], object], steps: int) -> dict[str, Any]:
    """Shares of the time without work, and the kernels that take longest.

    Args:
        step: run so many times.
        steps: how often.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return summarize([e for e in events if e.get("cat") in _ON_DEVICE], steps)


def summarize(events: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """The same, from the events of a trace."""
    if not events:
        raise RuntimeError("the profiler saw nothing on the device")
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)
    idle, waiting, reached = 0.0, 0.0, spans[0][0]
    for start, end in spans:
        gap = max(0.0, start - reached)
        idle += gap
        waiting += gap if gap > _OWN_GAP else 0.0
        reached = max(reached, end)
    whole = reached - spans[0][0]
    spent: Counter[str] = Counter()
    for event in events:
        spent[str(event["name"])[:80]] += event["dur"]
    return {
        "idle": idle / whole,
        "idle_long_gaps": waiting / whole,
        "kernels_per_step": len(events) / steps,
        "us_per_step": whole / steps,
        "longest": {name: us / steps for name, us in spent.most_common(15)},
    }
