"""vLLM's CPU build, in its own environment."""

from __future__ import annotations

import io
import itertools
import time
from typing import Any

from PIL import Image
from vllm import LLM, SamplingParams

from bench.peers.worker import Job
from bench.peers.workloads import Request


class Vllm:
    """An `LLM`; one request at a time is streamed by its engine."""

    def __init__(self, job: Job) -> None:
        self._llm = LLM(
            model=job.model, dtype=job.dtype, max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=2048,
            enforce_eager=True, **job.options,
        )  # fmt: skip
        self._ids = itertools.count()

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        outputs = self._llm.generate([_prompt(r) for r in requests], _params(tokens), use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    def stream(self, request: Request, tokens: int) -> list[float]:
        engine, times = self._llm.llm_engine, list[float]()
        engine.add_request(f"streamed-{next(self._ids)}", _prompt(request), _params(tokens))
        while engine.has_unfinished_requests():
            count = sum(len(output.outputs[0].token_ids) for output in engine.step())
            times += [time.monotonic()] * (count - len(times))
        return times


def load(job: Job) -> Vllm:
    """The engine."""
    return Vllm(job)


def _prompt(request: Request) -> dict[str, Any]:
    if request.image is None:
        return {"prompt": request.text}
    image = Image.open(io.BytesIO(request.image)).convert("RGB")
    return {"prompt": request.text, "multi_modal_data": {"image": image}}


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
