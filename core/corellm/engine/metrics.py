"""The engine's metrics: one list of counters and gauges, read at any moment.

Names are vLLM's, with `corellm:` before them instead of `vllm:`. Knows no server and keeps no history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
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


@dataclass(frozen=True, slots=True)
class Vector(Metric):
    """Counters of one name by position; `value` is their sum."""

    values: list[int]
    """Grow from 0 at the engine's start; positions are added when they are needed."""


DESCRIPTIONS = {
    "corellm:num_requests_running": "Requests that have KV blocks and take part in steps",
    "corellm:num_requests_waiting": "Requests that wait for their first step, or to be computed again after preemption",
    "corellm:num_requests_swapped": "Preempted requests whose KV is in CPU memory",
    "corellm:kv_cache_usage_perc": "Share of KV blocks that requests hold, from 0 to 1",
    "corellm:mm_cache_usage_perc": "Share of the processor cache's bytes that are in use, from 0 to 1",
    "corellm:encoder_cache_usage_perc": "Share of the encoder cache's tokens that are in use, from 0 to 1",
    "corellm:is_sleeping": "1 while the model sleeps, and requests wait until it wakes, else 0",
    "corellm:prompt_tokens": "Tokens of prompts, cached ones included",
    "corellm:generation_tokens": "Tokens that were generated",
    "corellm:num_preemptions": "Times that a request lost its KV blocks to another one",
    "corellm:prefix_cache_queries": "Tokens of prompts that were looked up in the prefix cache",
    "corellm:prefix_cache_hits": "Tokens of prompts that were found in it",
    "corellm:mm_cache_queries": "Items that were looked up in the processor cache",
    "corellm:mm_cache_hits": "Items that were found in it, and not processed again",
    "corellm:encoder_cache_queries": "Items that were looked up in the encoder cache",
    "corellm:encoder_cache_hits": "Items that were found in it, and not encoded again",
    "corellm:spec_decode_num_drafts": "Times that a request had drafts in a step",
    "corellm:spec_decode_num_draft_tokens": "Tokens that were drafted, and checked",
    "corellm:spec_decode_num_accepted_tokens": "Drafted tokens that were right",
    "corellm:spec_decode_num_accepted_tokens_per_pos": "The same by their position in a request's drafts, from 0 on",
    "corellm:lora_adapters_running": "LoRA adapters of requests that run",
    "corellm:lora_adapters_waiting": "LoRA adapters of which all requests wait",
    "corellm:lora_adapters_loaded": "LoRA adapters in the model, those of no request included",
    "corellm:lora_adapters_kept": "LoRA adapters in CPU memory, whose files need not be read",
    "corellm:lora_adapters_read": "Times that an adapter's files were read",
    "corellm:lora_adapters_replaced": "Times that an adapter left the model for another one",
}
"""What each of them counts."""
_OF_PARTS: Mapping[str, type[Counter | Gauge]] = {
    "corellm:lora_adapters_running": Gauge,
    "corellm:lora_adapters_waiting": Gauge,
    "corellm:lora_adapters_loaded": Gauge,
    "corellm:lora_adapters_kept": Gauge,
    "corellm:lora_adapters_read": Counter,
    "corellm:lora_adapters_replaced": Counter,
}
"""Metrics of the worker's parts; 0 where there is no such part."""


def total_metrics(of_engines: Iterable[Sequence[Metric]]) -> list[Metric]:
    """The metrics of several engines together: sums, and of shares and states the largest one."""
    whole: dict[str, Metric] = {}
    for metric in chain.from_iterable(of_engines):
        known = whole.get(metric.name)
        whole[metric.name] = metric if known is None else _joined(known, metric)
    return list(whole.values())


def _joined(one: Metric, other: Metric) -> Metric:
    if isinstance(one, Vector) and isinstance(other, Vector):
        values = [sum(pair) for pair in zip_longest(one.values, other.values, fillvalue=0)]
        return Vector(one.name, sum(values), values)
    has_bound = one.name.endswith(("_perc", ":is_sleeping"))
    return replace(one, value=max(one.value, other.value) if has_bound else one.value + other.value)


def read_metrics(engine: LLMEngine) -> list[Metric]:
    """The metrics as of now."""
    stats, cache = engine.scheduler.get_stats(), engine.input_processor.mm_processor.cache
    gauges = {
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "num_requests_swapped": stats.num_swapped,
        "kv_cache_usage_perc": stats.kv_cache_usage,
        "mm_cache_usage_perc": cache.usage,
        "encoder_cache_usage_perc": stats.encoder_cache_usage,
        "is_sleeping": int(engine.is_sleeping),
    }
    counters = {
        "prompt_tokens": engine.num_prompt_tokens,
        "generation_tokens": engine.num_generated_tokens,
        "num_preemptions": stats.num_preemptions,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "mm_cache_queries": cache.hits + cache.misses,
        "mm_cache_hits": cache.hits,
        "encoder_cache_queries": stats.encoder_cache_queries,
        "encoder_cache_hits": stats.encoder_cache_hits,
        "spec_decode_num_drafts": stats.num_drafts,
        "spec_decode_num_draft_tokens": stats.num_draft_tokens,
        "spec_decode_num_accepted_tokens": sum(stats.accepted_per_position),
    }
    of_parts: dict[str, Metric] = {name: kind(name, 0) for name, kind in _OF_PARTS.items()}
    of_parts |= {metric.name: metric for part in engine.runner.parts for metric in part.metrics()}
    accepted = list(stats.accepted_per_position)
    return [
        *(Gauge(f"corellm:{name}", value) for name, value in gauges.items()),
        *(Counter(f"corellm:{name}", value) for name, value in counters.items()),
        *of_parts.values(),
        Vector("corellm:spec_decode_num_accepted_tokens_per_pos", sum(accepted), accepted),
    ]
