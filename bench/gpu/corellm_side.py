"""corellm on one model: decode steps against the memory's floor, idle time, workloads W1 and W2.

A decode step reads the decoder's weights and every sequence's keys and values at least: over the copy rate that is its
floor. Steps are taken from outside, by `engine.step`, so that all the host does counts.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.gpu import workloads
from bench.gpu.checkpoints import SIZES
from bench.gpu.results import Run


def measure(run: Run, model: str) -> None:
    """Everything of one model; eager steps by an engine of their own, which compiles what the other one needs too."""
    with run.guard(f"{model} eager"), _opened(run, model, enforce_eager=True) as llm:
        _decode(run, llm.engine, model, "eager", 1)
    with _opened(run, model) as llm:
        batches = [1, 2] if run.quick else [1, 8, 64]
        if model == "1b":
            batches.append(256)  # of the larger one, 80 GB do not hold so many sequences
        for batch in batches:
            _decode(run, llm.engine, model, "graphs", batch)
        workloads.measure(run, llm, model)
        for batch in () if run.quick else (1, 64):  # last: a profiler that was on slows what comes after
            with run.guard(case := f"{model} idle batch {batch}"), _steady(run, llm.engine, model, batch):
                spans = _device_spans(llm.engine.step, steps=20)
                run.figure(case, **occupancy([span[:2] for span in spans], steps=20), kernels=dearest(spans))


@contextmanager
def _opened(run: Run, model: str, **options: Any) -> Iterator[Any]:
    from corellm import LLM

    sizes: dict[str, Any] = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 2048}
    if run.quick:
        sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 256, "max_model_len": 512, "num_kv_blocks": 256}
    start = time.perf_counter()
    dtype = str(run.dtype).removeprefix("torch.")
    with LLM(str(run.checkpoint(model)), dtype=dtype, device=run.device_type, **sizes, **options) as llm:
        run.figure(f"{model} {' '.join(options) or 'graphs'} start", seconds=time.perf_counter() - start)
        yield llm


@contextmanager
def _steady(run: Run, engine: Any, model: str, batch: int) -> Iterator[int]:
    """Sequences past their prompts, one token each a step, until the context is left; gives the prompts' length."""
    from corellm import SamplingParams

    context = 24 if run.quick else 512
    seed = time.monotonic_ns() % 2**32  # nothing of it is cached
    prompts = workloads.token_prompts(batch, seed, context, context, SIZES[model].vocab)
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    for i, ids in enumerate(prompts):
        engine.add_request(f"steady-{seed}-{i}", {"prompt_token_ids": ids}, params, stream=False)
    try:
        full_steps = 0
        while full_steps < 3:  # the first full step may hold prompts, the second may be the first to be captured
            before = engine.num_generated_tokens
            engine.step()
            full_steps = full_steps + 1 if engine.num_generated_tokens - before == batch else 0
            if not engine.has_unfinished_requests():
                raise RuntimeError(f"{batch} sequences never decoded together; does the KV cache hold them?")
        yield context
    finally:
        for i in range(batch):
            engine.abort_request(f"steady-{seed}-{i}", silently=True)


def _decode(run: Run, engine: Any, model: str, variant: str, batch: int) -> None:
    """The median of four stretches, by tokens: the engine may launch steps ahead of their results."""
    with run.guard(case := f"{model} {variant} decode batch {batch}"), _steady(run, engine, model, batch) as context:
        stretches = []
        first = engine.num_generated_tokens
        for _ in range(4):
            before, start = engine.num_generated_tokens, time.perf_counter()
            for _ in range(2 if run.quick else 12):
                engine.step()
            stretches.append((time.perf_counter() - start) * batch / (engine.num_generated_tokens - before))
        seconds = statistics.median(stretches)
        context += (engine.num_generated_tokens - first) // batch // 2
        size = SIZES[model]
        moved = run.dtype.itemsize * (size.decoder_parameters + batch * context * size.kv_elements)
        floor = moved / run.ceiling("copy")
        run.figure(case, ms=1e3 * seconds, floor_ms=1e3 * floor, share=floor / seconds)


def _device_spans(step: Callable[[], object], steps: int) -> list[tuple[float, float, str]]:
    """What torch's profiler saw on the device: start and end of everything, in microseconds, and its name."""
    import torch
    from torch.autograd import DeviceType  # type: ignore[attr-defined]  # not in its `__all__`
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return [(event.time_range.start, event.time_range.end, event.name) for event in events]


def dearest(spans: list[tuple[float, float, str]], most: int = 12) -> list[tuple[str, float, int]]:
    """The kernels that take most of the time: the name, its share of all kernels' time, how often it ran."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for start, end, name in spans:
        times[name].append(end - start)
    whole = sum(map(sum, times.values()))
    ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
    return [(name, sum(each) / whole, len(each)) for name, each in ordered[:most]]


def occupancy(spans: list[tuple[float, float]], steps: int) -> dict[str, float]:
    """The share of the time in which nothing runs; gaps up to 10 us are the device's own way between two kernels."""
    gaps, reached = [], min(spans)[0]
    for start, end in sorted(spans):
        gaps.append(max(0.0, start - reached))
        reached = max(reached, end)
    whole = reached - min(spans)[0]
    long_gaps = sum(gap for gap in gaps if gap > 10)
    return {"idle": sum(gaps) / whole, "idle_long_gaps": long_gaps / whole, "kernels_per_step": len(spans) / steps}
