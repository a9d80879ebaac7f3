"""The engine's metrics: one list of counters and gauges, read at any moment.

Names are vLLM's, with `corellm:` before them instead of `vllm:`. Knows no server and keeps no history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine


@dataclass(frozen=True, slots=True)
class Metric:
    """A number with a name."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """Grows from 0 at the engine's start."""

    value: int


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """Goes up and down."""


def read_metrics(engine: LLMEngine) -> list[Metric]:
    """The metrics as of now."""
    stats, cache = engine.scheduler.get_stats(), engine.input_processor.mm_processor.cache
    gauges = {
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "num_requests_swapped": stats.num_swapped,
        "kv_cache_usage_perc": stats.kv_cache_usage,
        "encoder_cache_usage_perc": stats.encoder_cache_usage,
    }
    counters = {
        "prompt_tokens": engine.num_prompt_tokens,
        "generation_tokens": engine.num_generated_tokens,
        "num_preemptions": stats.num_preemptions,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "mm_cache_queries": cache.hits + cache.misses,
        "mm_cache_hits": cache.hits,
    }
    return [
        *(Gauge(f"corellm:{name}", value) for name, value in gauges.items()),
        *(Counter(f"corellm:{name}", value) for name, value in counters.items()),
    ]
