"""The engine's steps: decodes against the memory's floor, prompts with pictures, idle time.

A decode step reads the decoder's weights and every sequence's keys and values at least: over the copy's rate that is
its floor. Steps are taken from outside, by `engine.step`, so that all the host does counts.
"""

from __future__ import annotations

import time
from typing import Any

from bench.gpu.ceilings import bytes_per_second, flops_per_second
from bench.gpu.checkpoints import SIZES, Size
from bench.gpu.occupancy import occupancy
from bench.gpu.prompts import picture_requests
from bench.gpu.settings import Settings
from bench.gpu.steady_decode import SteadyDecode

PART = "engine"


def measure_steps(settings: Settings, engine: Any, model: str, variant: str) -> None:
    """Decode steps of some batches; of layers as they come, of small ones only."""
    batches = (1, 2) if settings.quick else (1, 8) if variant == "unfused" else (1, 8, 64, 256)
    for batch in batches:
        with settings.records.guard(PART, f"{model} {variant} decode batch {batch}"):
            _decode(settings, engine, model, variant, batch)


def measure_prompts(settings: Settings, engine: Any, model: str) -> None:
    """Prompts with a picture each, processed before, to their first token."""
    with settings.records.guard(PART, f"{model} prompts with pictures"):
        _prompts(settings, engine, SIZES[model], model)


def measure_idle(settings: Settings, engine: Any, model: str) -> None:
    """Idle time; the last of an engine's measurements, for a profiler that was here slows what comes after."""
    for batch in (1, 8, 64):
        with (
            settings.records.guard(PART, f"{model} idle batch {batch}"),
            _steady(settings, engine, model, batch) as decode,
        ):
            decode.seconds_per_step(8)
            settings.records.figure(PART, f"{model} idle batch {batch}", **occupancy(engine.step, steps=20))


def _steady(settings: Settings, engine: Any, model: str, batch: int) -> SteadyDecode:
    """512 tokens each before the first that is generated."""
    context, longest = (24, 400) if settings.quick else (512, 400)
    return SteadyDecode(engine, batch, context, SIZES[model].vocab - 64, longest)


def _decode(settings: Settings, engine: Any, model: str, variant: str, batch: int) -> None:
    size = SIZES[model]
    with _steady(settings, engine, model, batch) as decode:
        seconds = decode.seconds_per_step(4 if settings.quick else 48)
        context = decode.mean_context
    moved = settings.dtype.itemsize * (size.decoder_parameters + batch * context * size.kv_elements)
    floor = moved / bytes_per_second(settings)
    settings.records.figure(
        PART, f"{model} {variant} decode batch {batch}",
        ms=1e3 * seconds, floor_ms=1e3 * floor, share=floor / seconds, tokens_per_s=batch / seconds, context=context,
    )  # fmt: skip


def _prompts(settings: Settings, engine: Any, size: Size, model: str) -> None:
    count = 2 if settings.quick else 64
    _run_prompts(engine, count, seed=1)
    processing, seconds, tokens = _run_prompts(engine, count, seed=2)
    pairs = tokens * tokens / count / 2
    flops = 2 * tokens * size.layer_parameters + 4 * size.layers * size.hidden * pairs
    patches = count * (size.image_tokens + 1)
    flops += 2 * patches * size.vision_parameters
    flops += 4 * (size.vision_layers - 1) * size.vision_hidden * patches * (size.image_tokens + 1)
    settings.records.figure(
        PART, f"{model} prompts with pictures",
        pictures_per_s=count / seconds, tokens_per_s=tokens / seconds, tflop_per_s=flops / seconds / 1e12,
        share=flops / seconds / flops_per_second(settings), processed_per_s_and_thread=count / processing,
    )  # fmt: skip


def _run_prompts(engine: Any, count: int, seed: int) -> tuple[float, float, int]:
    """Seconds of processing in one thread, seconds to every first token, tokens in all."""
    from corellm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    requests = picture_requests(count, seed)
    start = time.perf_counter()
    processed = [engine.input_processor.process(request.prompt) for request in requests]
    between = time.perf_counter()
    for i, prompt in enumerate(processed):
        engine.add_request(f"prompt-{seed}-{i}", prompt, params, stream=False)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.error is not None:
                raise output.error
    return between - start, time.perf_counter() - between, sum(len(prompt.token_ids) for prompt in processed)
