"""What users do: W1 are requests with an image each, W2 requests of text, all there at once.

Requests come from seeds, the same for corellm and for transformers. Processing of images counts. Before each workload
the same kind of requests, of other seeds, warms up.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench.gpu.checkpoints import SIZES
from bench.gpu.results import Run

LEADING = 8
"""Tokens of each output that are compared with transformers'."""


def num_requests(run: Run) -> int:
    """Requests of W1 and W2."""
    return 4 if run.quick else 256


def num_tokens(run: Run, workload: str) -> int:
    """Tokens of each output."""
    return ({"W1": 4, "W2": 6} if run.quick else {"W1": 64, "W2": 128})[workload]


def image_prompts(run: Run, model: str, seed: int) -> list[dict[str, Any]]:
    """The prompts of W1: questions of different lengths, each about an image of its own, 640 x 480 of noise."""
    from PIL import Image

    questions = ("What is this?", "How many objects are there, of which colours?", "Describe it from left to right.")
    rng = np.random.default_rng(seed)
    return [
        {
            "prompt": f"USER: <image>\nNumber {i}: {questions[i % 3]} ASSISTANT:",
            "multi_modal_data": {"image": Image.fromarray(rng.integers(0, 256, (480, 640, 3), dtype=np.uint8))},
        }
        for i in range(num_requests(run))
    ]


def token_prompts(count: int, seed: int, shortest: int, longest: int, vocab: int) -> list[list[int]]:
    """Random tokens above the special ones, of different lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, vocab - 64, length).tolist() for length in rng.integers(shortest, longest + 1, count)]


def text_prompts(run: Run, model: str, seed: int) -> list[dict[str, Any]]:
    """The prompts of W2."""
    lengths = (8, 16) if run.quick else (64, 256)
    return [{"prompt_token_ids": ids} for ids in token_prompts(num_requests(run), seed, *lengths, SIZES[model].vocab)]


def measure(run: Run, llm: Any, model: str) -> None:
    """Both, by corellm; W1 once more with prompts that were prepared before, which says what preparation costs."""
    for name, make in (("W1", image_prompts), ("W2", text_prompts)):
        with run.guard(case := f"{model} {name} corellm"):
            _generate(llm, make(run, model, seed=10), 4)
            tokens = num_tokens(run, name)
            seconds, outputs = _generate(llm, make(run, model, seed=11), tokens)
            record(run, case, seconds, outputs, tokens)
    with run.guard(case := f"{model} W1 corellm, prepared before"):
        prompts = [llm.engine.input_processor.process(prompt) for prompt in image_prompts(run, model, seed=12)]
        tokens = num_tokens(run, "W1")
        record(run, case, *_generate(llm, prompts, tokens), tokens)


def record(run: Run, case: str, seconds: float, outputs: list[list[int]], tokens: int) -> None:
    """Record a workload of many requests; an output that is shorter than it was to be is an error."""
    if any(len(output) != tokens for output in outputs):
        raise RuntimeError(f"not every output has {tokens} tokens")
    leading = [output[:LEADING] for output in outputs]
    run.figure(case, seconds=seconds, tokens_per_s=len(outputs) * tokens / seconds, leading=leading)


def _generate(llm: Any, prompts: list[Any], tokens: int) -> tuple[float, list[list[int]]]:
    from corellm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start, [list(output.outputs[0].token_ids) for output in outputs]
