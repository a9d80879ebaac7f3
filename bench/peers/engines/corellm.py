"""corellm's own side."""

from __future__ import annotations

import itertools
import time
from typing import Any

from bench.peers.worker import Job
from bench.peers.workloads import Request
from corellm import LLM, SamplingParams

KV_BYTES = 1 << 30
SIZES: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "kv_cache_memory": KV_BYTES,
}


class Corellm:
    """An `LLM`; one request at a time is streamed by its engine."""

    def __init__(self, job: Job) -> None:
        self._llm = LLM(job.model, dtype=job.dtype, device="cpu", **SIZES, **job.options)
        self._ids = itertools.count()

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        outputs = self._llm.generate([_prompt(r) for r in requests], _params(tokens), use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    def stream(self, request: Request, tokens: int) -> list[float]:
        engine, times = self._llm.engine, list[float]()
        engine.add_request(f"streamed-{next(self._ids)}", _prompt(request), _params(tokens))
        while engine.has_unfinished_requests():
            before = engine.num_generated_tokens
            engine.step()
            times += [time.monotonic()] * (engine.num_generated_tokens - before)
        return times

    def close(self) -> None:
        """Free the model."""
        self._llm.close()


def load(job: Job) -> Corellm:
    """The engine."""
    return Corellm(job)


def _prompt(request: Request) -> dict[str, Any]:
    items = {"multi_modal_data": {"image": request.image}} if request.image is not None else {}
    return {"prompt": request.text, **items}


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
