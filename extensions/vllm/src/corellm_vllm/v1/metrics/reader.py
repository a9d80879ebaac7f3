"""The kinds of metrics, to tell what `get_metrics` gives: it gives no histogram."""

from __future__ import annotations

from dataclasses import dataclass

from corellm.engine.metrics import Counter, Gauge, Metric, Vector
from corellm_vllm.absent.exports import exports


@dataclass(frozen=True)
class Histogram:
    """A metric with a distribution; there is none."""

    name: str
    count: int
    sum: float
    buckets: dict[str, int]


__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
__getattr__ = exports(__name__)
