"""OpenVINO GenAI's continuous batching, on a checkpoint that optimum-intel exported, in its own environment."""

from __future__ import annotations

import io
import itertools
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from PIL import Image

from bench.peers.worker import Job
from bench.peers.workloads import Request


class OpenVino:
    """A `ContinuousBatchingPipeline`, with keys and values in the type of the measurement."""

    def __init__(self, job: Job) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.max_num_seqs = 32
        scheduler.max_num_batched_tokens = 2048
        scheduler.enable_prefix_caching = True
        is_native = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precision = "bf16" if job.dtype == "bfloat16" and is_native else "f32"  # elsewhere its cache must be float32
        self._pipeline = genai.ContinuousBatchingPipeline(
            job.model, scheduler, "CPU",
            {"INFERENCE_NUM_THREADS": job.threads, "INFERENCE_PRECISION_HINT": precision,
             "KV_CACHE_PRECISION": precision},
        )  # fmt: skip
        self._ids = itertools.count()

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        results = self._pipeline.generate(
            [request.text for request in requests],
            images=[_images(request) for request in requests],
            generation_config=[_params(tokens) for _ in requests],
        )
        return [result.texts[0] for result in results]

    def stream(self, request: Request, tokens: int) -> list[float]:
        times = list[float]()
        handle = self._pipeline.add_request(next(self._ids), request.text, _images(request), _params(tokens))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            while handle.can_read():
                new = sum(len(output.generated_ids) for output in handle.read().values())
                times += [time.monotonic()] * new
        return times


def load(job: Job) -> OpenVino:
    """The engine."""
    return OpenVino(job)


def _images(request: Request) -> list[ov.Tensor]:
    if request.image is None:
        return []
    image = Image.open(io.BytesIO(request.image)).convert("RGB")
    return [ov.Tensor(np.asarray(image)[None])]


def _params(tokens: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    return config
