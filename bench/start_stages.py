"""Stages of a model's start, in one fresh process: seconds, memory after each, and its peak meanwhile.

A stage's seconds are without those of stages inside it. Memory is the process's own (anonymous) and that of files that
it has mapped, which others may share; peaks are of both. The last lines hash the tokens and log-probabilities of a few
requests: they are equal wherever results are, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_STAGES = [
    ("corellm.loading.opening", "import_deferring", "importing transformers' modelling"),
    ("corellm.loading.loading", "open_model", "configuration, tokenizer, adapter"),
    ("corellm.loading.model_parts", "load_model", "making the model, reading"),
    ("corellm.loading.model_parts", "probe_decoder", "probing the decoder"),
    ("corellm.loading.two_way", "probe_spans", "probing spans"),
    ("corellm.loading.model_parts", "replace_layers", "replacing layers: the rest"),
    ("corellm_kernels.cpu.fusing", "fuse", "fusing"),
    ("corellm_kernels.cpu.fusing", "pack_linears", "packing"),
    ("corellm.loading.loading", "make_mm_processor", "processor of items"),
    ("corellm.loading.loading", "longest_whole", "dummy items"),
    ("corellm.loading.loading", "_measure_profile_run", "profile run"),
    ("corellm.loading.loading", "_allocate", "KV cache"),
    ("corellm.loading.loading", "_capture_graphs", "recording plans"),
    ("corellm.loading.loading", "check_trimming", "check of trimming"),
    ("corellm.worker.model_runner:ModelRunner", "touch_cache", "first blocks of the KV cache"),
    ("corellm.worker.encoder_runner:EncoderRunner", "check", "check of encoders"),
]
"""Where each function is looked up, its name, and what it is called here."""


class Stages:
    """Takes the times of functions, without those of others inside them."""

    def __init__(self) -> None:
        self._inner = [np.zeros(2)]
        print(f"{'stage':38}{'seconds':>9}{'CPU s':>8}{'own MB':>9}{'mapped MB':>11}{'peak MB':>9}")

    @contextmanager
    def of(self, name: str, since: Sequence[float] | None = None) -> Iterator[None]:
        """Time a block, or what was since then."""
        start = np.array(since or now())
        self._inner.append(np.zeros(2))
        yield
        took = now() - start
        self.show(name, *(took - self._inner.pop()))
        self._inner[-1] += took

    def show(self, name: str, seconds: float, cpu: float) -> None:
        """Print a line, and begin a new peak."""
        own, mapped, peak = (memory(kind) / 1e6 for kind in ("RssAnon", "RssFile", "VmHWM"))
        print(f"{name:38}{seconds:>9.2f}{cpu:>8.2f}{own:>9.0f}{mapped:>11.0f}{peak:>9.0f}", flush=True)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def wrap(self, where: str, function: str, name: str) -> None:
        """Have a function timed."""
        module, _, kind = where.partition(":")
        owner: Any = importlib.import_module(module)
        owner = getattr(owner, kind) if kind else owner
        if not hasattr(owner, function):
            return
        inner: Callable[..., Any] = getattr(owner, function)

        @wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.of(name):
                return inner(*args, **kwargs)

        setattr(owner, function, timed)


def now() -> tuple[float, float]:
    """Return the time, and the processor time that this process has taken."""
    return time.monotonic(), time.process_time()


def started() -> float:
    """Return when this process was started, on the clock of `time.monotonic`."""
    ticks = int(Path("/proc/self/stat").read_text("ascii").rpartition(")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def memory(kind: str) -> int:
    """Bytes, by the name that the system has for them."""
    (kilobytes,) = re.findall(rf"^{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    return int(kilobytes) * 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint whose prompts have <image>")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--weight-cache", default="none", help="folder of packed weights, auto or none (default: none)")
    parser.add_argument("--max-model-len", type=int, help="tokens of a sequence (default: what the model has)")
    parser.add_argument("--kv-cache-memory", type=int, default=1 << 30, help="bytes (default 1 GiB)")
    args = parser.parse_args()
    start, stages = started(), Stages()
    with stages.of("Python, imports of the engine", (start, 0.0)):
        from PIL import Image

        from corellm import LLM, SamplingParams
        from corellm.loading.deferred_imports import deferring

        with deferring():  # as a load does: else what can wait would be imported here, and counted
            for stage in _STAGES:
                stages.wrap(*stage)
    with stages.of("LLM: the rest"):
        llm = LLM(
            args.model, dtype=args.dtype, quantization=args.quantization, weight_cache=args.weight_cache, device="cpu",
            max_num_seqs=32, max_model_len=args.max_model_len, max_num_batched_tokens=2048,
            kv_cache_memory=args.kv_cache_memory,
        )  # fmt: skip
    with llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2)
        with stages.of("first token of a text"):
            llm.generate("USER: what is it? ASSISTANT:", SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        stages.show("process start to first token", time.monotonic() - start, time.process_time())
        image = Image.effect_mandelbrot((336, 336), (-2, -1.5, 1, 1.5), 50).convert("RGB")
        prompts = ["USER: one ASSISTANT:", "USER: two and more ASSISTANT:", "three"]
        with_image = {"prompt": "USER: <image> four ASSISTANT:", "multi_modal_data": {"image": image}}
        outputs = llm.generate([*prompts, with_image], params, use_tqdm=False)
        said = [(output.outputs[0].token_ids, repr(output.outputs[0].logprobs)) for output in outputs]
        print("tokens", *(output.outputs[0].token_ids for output in outputs))
        print("hash", hashlib.sha256(repr(said).encode()).hexdigest())


if __name__ == "__main__":
    main()
