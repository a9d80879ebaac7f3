"""What users do, from requests to texts: pictures in bulk, text in bulk, one picture and many questions, one at a time.

Pictures' processing counts. Before each workload the same kind of requests, of other seeds, warms up.
"""

from __future__ import annotations

import time
from typing import Any

from bench.gpu import prompts
from bench.gpu.checkpoints import SIZES
from bench.gpu.settings import Settings

PART = "workloads"
LEADING = 8
"""Tokens of each answer that are kept, to be compared with transformers'."""


def num_requests(settings: Settings) -> int:
    """Of W1 and W2."""
    return 4 if settings.quick else 256


def w1_tokens(settings: Settings) -> int:
    """Each answer of W1 has."""
    return 4 if settings.quick else 64


def w2_tokens(settings: Settings) -> int:
    """Each answer of W2 has."""
    return 6 if settings.quick else 128


def w2_prompts(settings: Settings, model: str, seed: int) -> list[list[int]]:
    """Prompts of W2."""
    shortest, longest = (8, 16) if settings.quick else (64, 256)
    vocab = SIZES[model].vocab - 64
    return prompts.token_requests(num_requests(settings), seed, shortest=shortest, longest=longest, vocab=vocab)


def measure(settings: Settings, llm: Any, model: str) -> None:
    """All four."""
    for name, workload in (("W1", _w1), ("W2", _w2), ("W4", _w4), ("W3", _w3)):
        with settings.records.guard(PART, f"{model} {name} ours"):
            workload(settings, llm, model)


def _answers(llm: Any, asked: list[Any], tokens: int) -> tuple[float, list[Any]]:
    """Seconds, and outputs of exactly so many tokens each."""
    from corellm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(asked, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    if any(len(output.outputs[0].token_ids) != tokens for output in outputs):
        raise RuntimeError(f"not every answer has {tokens} tokens")
    return seconds, outputs


def _leading(outputs: list[Any]) -> list[list[int]]:
    return [output.outputs[0].token_ids[:LEADING] for output in outputs]


def _w1(settings: Settings, llm: Any, model: str) -> None:
    """Many requests with a picture each, all there at once."""
    count, tokens = num_requests(settings), w1_tokens(settings)
    _answers(llm, [r.prompt for r in prompts.picture_requests(count, seed=10)], 2)
    seconds, outputs = _answers(llm, [r.prompt for r in prompts.picture_requests(count, seed=11)], tokens)
    settings.records.figure(
        PART, f"{model} W1 ours", seconds=seconds, tokens_per_s=count * tokens / seconds, leading=_leading(outputs)
    )


def _w2(settings: Settings, llm: Any, model: str) -> None:
    """Many text requests of different lengths, all there at once."""
    count, tokens = num_requests(settings), w2_tokens(settings)
    _answers(llm, [{"prompt_token_ids": ids} for ids in w2_prompts(settings, model, seed=20)], 4)
    asked = [{"prompt_token_ids": ids} for ids in w2_prompts(settings, model, seed=21)]
    seconds, outputs = _answers(llm, asked, tokens)
    settings.records.figure(
        PART, f"{model} W2 ours", seconds=seconds, tokens_per_s=count * tokens / seconds, leading=_leading(outputs)
    )


def _w3(settings: Settings, llm: Any, model: str) -> None:
    """A system prompt, a picture, many questions: with each its own cache, and with one for all."""
    count, tokens, rules = (3, 3, 2) if settings.quick else (64, 32, 20)
    picture, texts = prompts.questions_about_one_picture(count, rules)
    asked = [{"prompt": text, "multi_modal_data": {"image": picture}} for text in texts]
    _answers(llm, asked[:2], 2)  # processes the picture
    apart, _ = _answers(llm, [{**p, "cache_salt": str(i)} for i, p in enumerate(asked)], tokens)
    shared, outputs = _answers(llm, [{**p, "cache_salt": "shared"} for p in asked], tokens)
    cached = sum(output.num_cached_tokens for output in outputs)
    settings.records.figure(
        PART, f"{model} W3 ours",
        seconds=shared, tokens_per_s=count * tokens / shared, without_sharing_s=apart, ratio=apart / shared,
        cached=cached / sum(len(output.prompt_token_ids) for output in outputs),
    )  # fmt: skip


def _w4(settings: Settings, llm: Any, model: str) -> None:
    """One request at a time, each with a picture: to the first token, and between tokens."""
    count, tokens = (2, 4) if settings.quick else (8, 64)
    first, between = [], []
    for request in prompts.picture_requests(count + 2, seed=40):
        start = time.monotonic()
        _, (output,) = _answers(llm, [request.prompt], tokens)
        metrics = output.metrics
        first.append(metrics.first_token_time - start)
        between.append((metrics.finished_time - metrics.first_token_time) / (tokens - 1))
    settings.records.figure(
        PART, f"{model} W4 ours",
        first_token_ms=1e3 * sorted(first[2:])[count // 2], between_tokens_ms=1e3 * sorted(between[2:])[count // 2],
    )  # fmt: skip
