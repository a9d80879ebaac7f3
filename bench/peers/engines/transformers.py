"""transformers' `generate`, in corellm's own environment: all requests in one left-padded batch, or one by one."""

from __future__ import annotations

import io
import time
from typing import Any

import torch
import transformers
from PIL import Image
from transformers.generation.streamers import BaseStreamer

from bench.peers.worker import Job
from bench.peers.workloads import Request


class Transformers:
    """A model with its tokenizer and image processor, SDPA attention."""

    def __init__(self, job: Job) -> None:
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(job.threads)
        self._dtype = getattr(torch, job.dtype)
        self._model: Any = transformers.AutoModelForImageTextToText.from_pretrained(job.model, dtype=self._dtype).eval()
        self._model.generation_config.eos_token_id = None  # outputs are as long as they may be
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(job.model, padding_side="left")
        self._model.generation_config.pad_token_id = self._tokenizer.pad_token_id
        self._image_token = "<image>" if job.family == "llava" else "<|image_pad|>"
        # by name: the automatic one asks for torchvision for Qwen2-VL
        processor: Any = (
            transformers.CLIPImageProcessorPil if job.family == "llava" else transformers.Qwen2VLImageProcessorPil
        )
        self._image_processor = processor.from_pretrained(job.model)
        self._batched = job.options.get("batched", False)

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        batches = [requests] if self._batched else [[request] for request in requests]
        return [text for batch in batches for text in self._generate(batch, tokens)]

    def stream(self, request: Request, tokens: int) -> list[float]:
        streamer = _Times()
        self._generate([request], tokens, streamer=streamer)
        return streamer.times[1:]  # the first is the prompt

    @torch.inference_mode()
    def _generate(self, requests: list[Request], tokens: int, **options: Any) -> list[str]:
        inputs = self._inputs(requests)
        output = self._model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **options)
        new = output[:, inputs["input_ids"].shape[1] :]
        if new.shape[1] != tokens:
            raise RuntimeError(f"{new.shape[1]} tokens out, {tokens} were asked for")
        return list(self._tokenizer.batch_decode(new, skip_special_tokens=True))

    def _inputs(self, requests: list[Request]) -> dict[str, Any]:
        """What the family's processor makes of texts and images, without torchvision."""
        images = [Image.open(io.BytesIO(r.image)).convert("RGB") for r in requests if r.image is not None]
        texts, seen = [request.text for request in requests], {}
        if images:
            seen = dict(self._image_processor(images, return_tensors="pt"))
            texts = [
                text.replace(self._image_token, self._image_token * count)
                for text, count in zip(texts, self._image_tokens(seen), strict=True)
            ]
            seen["pixel_values"] = seen["pixel_values"].to(self._dtype)
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True)
        if "image_grid_thw" in seen:
            image_token = self._tokenizer.convert_tokens_to_ids(self._image_token)
            seen["mm_token_type_ids"] = (inputs["input_ids"] == image_token).int()
        return {**inputs, **seen}

    def _image_tokens(self, seen: dict[str, Any]) -> list[int]:
        if "image_grid_thw" in seen:
            return [int(count) for count in seen["image_grid_thw"].prod(-1) // 4]
        vision = self._model.config.vision_config
        return [(vision.image_size // vision.patch_size) ** 2] * len(seen["pixel_values"])


class _Times(BaseStreamer):  # type: ignore[misc]
    """When `generate` gave each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.monotonic())

    def end(self) -> None:
        pass


def load(job: Job) -> Transformers:
    """The engine."""
    return Transformers(job)
