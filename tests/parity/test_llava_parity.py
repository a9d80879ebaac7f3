"""Our tokens are transformers' tokens: greedy, float32, whatever the engine does to save time or memory.

The oracle is `generate` of transformers' own model, one request at a time. Random weights are spread wide enough that
a misplaced row shows; every request's continuation differs from the others'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from corellm import LLM, RequestOutput, SamplingParams
from tests.conftest import random_image


@dataclass
class Case:
    """One request."""

    prompt: str
    images: list[Image.Image]
    max_tokens: int

    @property
    def engine_prompt(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "multi_modal_data": {"image": self.images} if self.images else {}}

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=self.max_tokens, min_tokens=self.max_tokens, logprobs=0)


@dataclass
class Expected:
    """What transformers gives for a case."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


QUESTIONS = [
    "What shape is in the picture?",
    "How many objects are there?",
    "Describe the image. The quick brown fox jumps over the lazy dog. " * 2,
    "yes or no?",
    "left, right, above or below?",
    "0123456789 " * 5,
]


def cases() -> list[Case]:
    """24 requests: text only, one picture, three of different sizes, shared prefixes, different lengths."""
    shared = random_image(80, 60, seed=99)
    text = [Case(f"USER: {q} ASSISTANT:", [], 20 + 8 * i) for i, q in enumerate(QUESTIONS)]
    one = [
        Case(f"USER: <image>\n{q} ASSISTANT:", [random_image(40 + 17 * i, 90 - 9 * i, seed=i)], 5 + 2 * i)
        for i, q in enumerate(QUESTIONS)
    ]
    three = [
        Case(
            f"USER: <image> and <image>\n{q} <image> ASSISTANT:",
            [random_image(30 + 25 * j, 70 + 10 * i, seed=50 + 3 * i + j) for j in range(3)],
            7 + 2 * i,
        )
        for i, q in enumerate(QUESTIONS)
    ]
    prefix = [Case(f"USER: <image>\nLook at this picture with care. {q} ASSISTANT:", [shared], 8) for q in QUESTIONS]
    return [case for group in zip(text, one, three, prefix, strict=True) for case in group]


def generate_with_transformers(path: Path, requests: list[Case]) -> list[Expected]:
    """The oracle: one request at a time."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    processor = transformers.AutoProcessor.from_pretrained(path)
    expected = []
    for case in requests:
        inputs = processor(text=case.prompt, images=case.images or None, return_tensors="pt")
        output = model.generate(
            **inputs, max_new_tokens=case.max_tokens, min_new_tokens=case.max_tokens, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        prompt_len = inputs["input_ids"].shape[1]
        tokens = output.sequences[0, prompt_len:].tolist()
        logprobs = [
            torch.log_softmax(step[0].float(), -1)[token].item()
            for step, token in zip(output.logits, tokens, strict=True)
        ]
        expected.append(Expected(inputs["input_ids"][0].tolist(), tokens, logprobs))
    return expected


Oracle = Callable[[str], tuple[Path, list[Case], list[Expected]]]

SIZES = {"tiny": {}, "mid": {"hidden_size": 256, "num_layers": 4, "seed": 1}}


@pytest.fixture(scope="session")
def oracle(make_llava: Callable[..., Path]) -> Oracle:
    """`oracle(size)`: checkpoint, requests, and what transformers makes of them (once per run)."""
    known: dict[str, tuple[Path, list[Case], list[Expected]]] = {}

    def get(size: str) -> tuple[Path, list[Case], list[Expected]]:
        if size not in known:
            path, requests = make_llava(**SIZES[size]), cases()
            known[size] = (path, requests, generate_with_transformers(path, requests))
        return known[size]

    return get


def check(oracle_: tuple[Path, list[Case], list[Expected]], **engine_args: Any) -> tuple[LLM, list[RequestOutput]]:
    """Run all requests together and compare each with the oracle."""
    path, requests, expected = oracle_
    with LLM(str(path), dtype="float32", **engine_args) as llm:
        outputs = llm.generate([c.engine_prompt for c in requests], [c.params for c in requests], use_tqdm=False)
        for i, (output, want) in enumerate(zip(outputs, expected, strict=True)):
            assert output.prompt_token_ids == want.prompt_token_ids, f"request {i}: prompt"
            completion = output.outputs[0]
            assert completion.token_ids == want.token_ids, f"request {i}: tokens"
            assert completion.logprobs is not None
            got = [p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True)]
            assert got == pytest.approx(want.logprobs, abs=1e-4), f"request {i}: log-probabilities"
        manager = llm.engine.scheduler.blocks
        manager.check_integrity()
        assert manager.num_free_blocks == manager.capacity, "every block is free at the end"
    return llm, outputs


def test_the_oracle_can_tell_requests_apart(oracle: Oracle) -> None:
    """Random weights that answer every request alike would prove nothing."""
    _, requests, expected = oracle("tiny")
    assert len(requests) >= 24
    assert len({tuple(e.token_ids[:5]) for e in expected}) > 20
    assert sum(len(set(e.token_ids)) > len(e.token_ids) // 3 for e in expected) > 18


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunk", [16, 64, 8192])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_chunks_and_prefix_caching(oracle: Oracle, size: str, chunk: int, prefix_caching: bool) -> None:
    """Any chunk size gives the same tokens, with and without prefix caching."""
    _, outputs = check(oracle(size), max_num_batched_tokens=chunk, enable_prefix_caching=prefix_caching)
    cached = sum(output.num_cached_tokens for output in outputs)
    assert (cached > 0) == prefix_caching


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption(oracle: Oracle, size: str, block_size: int, mode: str) -> None:
    """So few blocks that requests are preempted, by recompute and by swap, in blocks of any size."""
    blocks = 192 // block_size
    _, outputs = check(
        oracle(size), num_kv_blocks=blocks, max_model_len=192, block_size=block_size, preemption_mode=mode,
        max_num_batched_tokens=64,
    )  # fmt: skip
    assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chunk", [16, 8192])
def test_caches_of_one_item(oracle: Oracle, size: str, chunk: int) -> None:
    """An encoder cache and a processor cache that hold a single item."""
    llm, _ = check(oracle(size), encoder_cache_size=0, mm_processor_cache_gb=50e-6, max_num_batched_tokens=chunk)
    assert llm.engine.scheduler.encoder_cache.capacity_embeds == 16
    assert len(llm.engine.input_processor.mm_processor.cache) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("delay", [0.0, 0.5])
@pytest.mark.parametrize("blocks", [None, 20])
def test_whole_prompts(oracle: Oracle, size: str, delay: float, blocks: int | None) -> None:
    """Without chunked prefill: whole prompts first, also when blocks are short and with a delay factor."""
    check(
        oracle(size), enable_chunked_prefill=False, scheduler_delay_factor=delay, num_kv_blocks=blocks,
        max_model_len=320,
    )  # fmt: skip


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_attention_backends(oracle: Oracle, backend: str) -> None:
    """Every backend that runs here."""
    check(oracle("tiny"), attention_backend=backend)


@pytest.mark.parametrize(
    "options",
    [
        {"vision": "siglip", "text": "qwen2"},
        {"vision": "clip", "text": "mistral", "vision_feature_select_strategy": "full"},
        {"vision": "clip", "text": "llama", "vision_feature_layer": [-2, 1]},
    ],
    ids=["siglip-qwen2", "clip-mistral-full", "clip-llama-layers"],
)
def test_compositions(make_llava: Callable[..., Path], options: dict[str, Any]) -> None:
    """Every tower, text model, feature layer and select strategy."""
    path = make_llava(**options)
    requests = cases()[:12]
    check((path, requests, generate_with_transformers(path, requests)), max_num_batched_tokens=64)
