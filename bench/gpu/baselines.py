"""The same workloads by transformers, in a process of their own: `generate` with pictures, continuous batching of text.

Same checkpoint, dtype and requests, greedy, SDPA. `generate` gets batches as large as memory allows, and smaller ones;
the fastest counts. Continuous batching knows no pictures; it chooses its own batches. Loading and warming up count for
nobody; processing of pictures is told apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from bench.gpu import prompts, workloads
from bench.gpu.memory import release
from bench.gpu.settings import Settings

PART = workloads.PART
_ROOM = 6.0


def measure(settings: Settings, model: str) -> None:
    """W1, W4 and W2, on one model."""
    records = settings.records
    with records.guard(PART, f"{model} transformers"):
        theirs = _Transformers.load(settings, model)
        for name, workload in (("W1", _w1), ("W4", _w4), ("W2", _w2)):
            if settings.seconds_left() < _ROOM:
                records.note(PART, f"{model} {name} transformers", "not measured, time is up")
                continue
            with records.guard(PART, f"{model} {name} transformers"):
                workload(settings, theirs, model)


@dataclass(frozen=True)
class _Transformers:
    """A model of theirs with its processor."""

    model: Any
    processor: Any
    device: torch.device

    @classmethod
    def load(cls, settings: Settings, model: str) -> _Transformers:
        import transformers

        path, device = settings.checkpoint(model), torch.device(settings.device)
        loaded = transformers.LlavaForConditionalGeneration.from_pretrained(
            path, dtype=settings.dtype, attn_implementation="sdpa",
            **({"device_map": {"": device}} if settings.on_gpu else {}),
        ).eval()  # fmt: skip
        loaded.generation_config.eos_token_id = None  # every answer is as long as it may be
        processor = transformers.AutoProcessor.from_pretrained(path)
        processor.tokenizer.padding_side = "left"
        return cls(loaded, processor, device)

    def process(self, asked: list[prompts.PictureRequest]) -> Any:
        """One padded batch."""
        texts, pictures = [r.text for r in asked], [r.picture for r in asked]
        return self.processor(text=texts, images=pictures, return_tensors="pt", padding=True)

    @torch.inference_mode()
    def generate(self, inputs: Any, tokens: int) -> list[list[int]]:
        """Answers of a batch."""
        inputs = inputs.to(self.device).to(self.model.dtype)
        pad = self.model.generation_config.pad_token_id
        output = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=pad)
        answers: list[list[int]] = output[:, inputs["input_ids"].shape[1] :].tolist()
        return answers


def _w1(settings: Settings, theirs: _Transformers, model: str) -> None:
    count, tokens = workloads.num_requests(settings), workloads.w1_tokens(settings)
    theirs.generate(theirs.process(prompts.picture_requests(min(count, 16), seed=10)), 4)
    asked = prompts.picture_requests(count, seed=11)
    for batch in (2, count) if settings.quick else (64, 256, 128):
        case = f"{model} W1 transformers batch {batch}"
        if batch == 128 and _has(settings, f"{model} W1 transformers batch 256"):
            continue  # smaller than what fits, and larger than what was measured
        with settings.records.guard(PART, case):
            try:
                _bulk(settings, theirs, case, asked if batch >= 128 else asked[:batch], batch, tokens)
            except torch.OutOfMemoryError as error:
                settings.records.note(PART, case, f"out of memory: {error}".partition(".")[0])
        release()


def _has(settings: Settings, case: str) -> bool:
    return any(record.kind == "figure" and record.case == case for record in settings.records.read())


def _bulk(
    settings: Settings,
    theirs: _Transformers,
    case: str,
    asked: list[prompts.PictureRequest],
    batch: int,
    tokens: int,
) -> None:
    """All requests in batches, one after another."""
    processing, generating, answers = 0.0, 0.0, []
    for first in range(0, len(asked), batch):
        start = time.perf_counter()
        inputs = theirs.process(asked[first : first + batch])
        between = time.perf_counter()
        answers += theirs.generate(inputs, tokens)
        processing, generating = processing + between - start, generating + time.perf_counter() - between
    if any(len(answer) != tokens for answer in answers):
        raise RuntimeError(f"not every answer has {tokens} tokens")
    made = len(answers) * tokens
    settings.records.figure(
        PART, case,
        seconds=processing + generating, tokens_per_s=made / (processing + generating),
        generate_alone_tokens_per_s=made / generating, leading=[a[: workloads.LEADING] for a in answers],
    )  # fmt: skip


def _w2(settings: Settings, theirs: _Transformers, model: str) -> None:
    """As it is by default, which for SDPA is without graphs; with a small model also with them."""
    variants = {"": None} if model == "7b" else {"": None, " with graphs": True}
    for name, graphs in variants.items():
        case = f"{model} W2 transformers{name}"
        with settings.records.guard(PART, case):
            _batch_continuously(settings, theirs, model, case, graphs)
        release()


def _batch_continuously(settings: Settings, theirs: _Transformers, model: str, case: str, graphs: bool | None) -> None:
    """The manager is made, and has warmed up, before; as long as it lives it keeps the memory it took."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    count, tokens = workloads.num_requests(settings), workloads.w2_tokens(settings)
    sizes = {"block_size": 32, "num_blocks": 64, "max_batch_tokens": 256} if settings.quick else {}
    options = {
        "generation_config": GenerationConfig(
            do_sample=False, max_new_tokens=tokens, eos_token_id=-1,
            pad_token_id=theirs.model.generation_config.pad_token_id,
        ),
        "continuous_batching_config": ContinuousBatchingConfig(
            max_requests_per_batch=count, use_cuda_graph=graphs, **sizes
        ),
        "persistent_manager": True,
    }  # fmt: skip

    def run(seed: int, new: int) -> tuple[float, list[list[int]]]:
        inputs = workloads.w2_prompts(settings, model, seed)
        start = time.perf_counter()
        results = theirs.model.generate_batch(inputs, max_new_tokens=new, **options)
        seconds = time.perf_counter() - start
        errors = {result.error for result in results.values() if result.error is not None}
        answers = [list(result.generated_tokens) for result in results.values()]
        if errors or len(answers) != count or any(len(answer) != new for answer in answers):
            raise RuntimeError(f"{len(answers)} of {count} answers; {'; '.join(map(str, errors)) or 'some too short'}")
        return seconds, answers

    try:
        run(20, 4)
        seconds, answers = run(21, tokens)
    finally:
        theirs.model.destroy_cached_continuous_batching_manager()
    settings.records.figure(
        PART, case,
        seconds=seconds, tokens_per_s=count * tokens / seconds, leading=[a[: workloads.LEADING] for a in answers],
    )  # fmt: skip


def _w4(settings: Settings, theirs: _Transformers, model: str) -> None:
    """One at a time: a first token, and the others after it, from two calls."""
    tokens = 3 if settings.quick else 33
    first: list[float] = []
    whole: list[float] = []
    for i, request in enumerate(prompts.picture_requests(4, seed=40)):
        for new, spent in ((1, first), (tokens, whole)):
            start = time.perf_counter()
            theirs.generate(theirs.process([request]), new)
            if i:
                spent.append(time.perf_counter() - start)
    between = (sorted(whole)[1] - sorted(first)[1]) / (tokens - 1)
    settings.records.figure(
        PART, f"{model} W4 transformers", first_token_ms=1e3 * sorted(first)[1], between_tokens_ms=1e3 * between
    )
