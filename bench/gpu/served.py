"""Our side: engines opened as the measurements want them, as few as possible, and the memory they leave behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.gpu import engine, workloads
from bench.gpu.memory import release
from bench.gpu.settings import Settings

VARIANTS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "eager": {"enforce_eager": True},
    "unfused": {"fuse_layers": False},
}
"""By name, the options of an engine."""
_ROOM = 8.0


def measure(settings: Settings, model: str, *parts: str) -> None:
    """Everything of one model: steps of each variant, and the workloads on the first."""
    start = time.perf_counter()
    import_module("corellm.engine.loading")
    _ = import_module("transformers").LlavaForConditionalGeneration  # transformers imports what it is asked for
    settings.records.figure(engine.PART, f"{model} imports", seconds=time.perf_counter() - start)
    for variant in ("graphs", "eager") if model == "7b" else VARIANTS:
        if variant != "graphs" and "engine" not in parts:
            continue
        if settings.seconds_left() < _ROOM:
            settings.records.note(engine.PART, f"{model} {variant}", "not measured, time is up")
            continue
        with settings.records.guard(engine.PART, f"{model} {variant}"):
            _measure_variant(settings, model, variant, parts)
        settings.records.figure(engine.PART, f"{model} {variant} closed", gib_still_held=release())


def _measure_variant(settings: Settings, model: str, variant: str, parts: Sequence[str]) -> None:
    with opened(settings, model, variant) as llm:
        if "engine" in parts:
            engine.measure_steps(settings, llm.engine, model, variant)
        if variant != "graphs":
            return
        if "engine" in parts:
            engine.measure_prompts(settings, llm.engine, model)
        if "workloads" in parts:
            workloads.measure(settings, llm, model)
        if "engine" in parts and settings.on_gpu:
            engine.measure_idle(settings, llm.engine, model)


@contextmanager
def opened(settings: Settings, model: str, variant: str) -> Iterator[Any]:
    """`LLM` with the benchmark's options, closed in the end; how long it took to start is recorded."""
    from corellm import LLM

    sizes: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 2048}
    if settings.quick:
        sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 256, "max_model_len": 512, "num_kv_blocks": 256}
    start = time.perf_counter()
    llm = LLM(
        str(settings.checkpoint(model)),
        dtype=str(settings.dtype).removeprefix("torch."),
        device=settings.device,
        **sizes,
        **VARIANTS[variant],
    )
    settings.records.figure(engine.PART, f"{model} {variant} start", seconds=time.perf_counter() - start)
    try:
        yield llm
    finally:
        llm.close()
