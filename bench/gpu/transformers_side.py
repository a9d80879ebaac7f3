"""The same workloads by transformers: `generate` with images, its continuous batching of text.

Same checkpoint, dtype and requests, greedy, SDPA. `generate` gets batches of several sizes and continuous batching
chooses its own; the fastest counts. Loading and warm-up do not count.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.gpu import workloads
from bench.gpu.results import Run


def measure(run: Run, model: str) -> None:
    """Both workloads on one model."""
    theirs = _Transformers(run, model)
    tokens = workloads.num_tokens(run, "W1")
    theirs.generate(workloads.image_prompts(run, model, seed=10)[:16], 4)
    prompts = workloads.image_prompts(run, model, seed=11)
    for batch in (2, 4) if run.quick else (64, 128, 256):
        some = prompts if run.quick else prompts[:batch]  # a rate needs no more
        with run.guard(case := f"{model} W1 transformers batch {batch}"):
            start, outputs = time.perf_counter(), []
            try:
                for first in range(0, len(some), batch):
                    outputs += theirs.generate(some[first : first + batch], tokens)
            except torch.OutOfMemoryError:
                print(f"{case}: does not fit the GPU", flush=True)
                break
            workloads.record(run, case, time.perf_counter() - start, outputs, tokens)
        if run.device_type == "cuda":
            torch.cuda.empty_cache()
    with run.guard(case := f"{model} W2 transformers"):
        theirs.batch_continuously(run, case, model)


class _Transformers:
    """A model with its processor."""

    def __init__(self, run: Run, model: str) -> None:
        import transformers

        path = run.checkpoint(model)
        self.model: Any = transformers.LlavaForConditionalGeneration.from_pretrained(
            path, dtype=run.dtype, attn_implementation="sdpa", device_map={"": run.device}
        ).eval()
        self.model.generation_config.eos_token_id = None  # every output is as long as it may be
        self._pad = self.model.generation_config.pad_token_id
        self._processor = transformers.AutoProcessor.from_pretrained(path)
        self._processor.tokenizer.padding_side = "left"

    @torch.inference_mode()
    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> list[list[int]]:
        """Outputs of one padded batch, processing included."""
        texts, images = zip(*((p["prompt"], p["multi_modal_data"]["image"]) for p in prompts), strict=True)
        inputs = self._processor(text=list(texts), images=list(images), return_tensors="pt", padding=True)
        inputs = inputs.to(self.model.device).to(self.model.dtype)
        output = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=self._pad)
        outputs: list[list[int]] = output[:, inputs["input_ids"].shape[1] :].tolist()
        return outputs

    def batch_continuously(self, run: Run, case: str, model: str) -> None:
        """W2; the manager is made and warmed up before."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        count, tokens = workloads.num_requests(run), workloads.num_tokens(run, "W2")
        sizes = {"block_size": 32, "num_blocks": 64, "max_batch_tokens": 256} if run.quick else {}
        options = {
            "generation_config": GenerationConfig(
                do_sample=False, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=self._pad
            ),
            "continuous_batching_config": ContinuousBatchingConfig(max_requests_per_batch=count, **sizes),
            "persistent_manager": True,
        }
        try:
            warm_up, inputs = (
                [prompt["prompt_token_ids"] for prompt in workloads.text_prompts(run, model, seed)] for seed in (10, 11)
            )
            self.model.generate_batch(warm_up, max_new_tokens=4, **options)
            start = time.perf_counter()
            results = self.model.generate_batch(inputs, **options)
            seconds = time.perf_counter() - start
        finally:
            self.model.destroy_cached_continuous_batching_manager()
        workloads.record(run, case, seconds, [list(result.generated_tokens) for result in results.values()], tokens)
