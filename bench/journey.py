"""What a prompt runs through from `LLM.generate` to attention of the first layer: functions, lines and files, traced.

A tiny LLaVA is asked for one token on the core's own backend for CPUs. Every function of the core that any thread
runs counts once, with all its lines; what is done once for a model has been done before. `hot_path.py` names those of a
step.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from PIL import Image

import corellm
from bench.hot_path import functions_of
from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint

CORE = Path(corellm.__file__).parent
LAST = "CpuAttention.forward"


def place_of(code: CodeType) -> tuple[str, str]:
    """Return file and function; an empty name for code of others, and for comprehensions, which are part of theirs."""
    path = Path(code.co_filename)
    if not path.is_relative_to(CORE) or code.co_name.startswith("<"):
        return "", ""
    return path.relative_to(CORE).as_posix(), code.co_qualname.split(".<locals>")[0]


class Tracer:
    """Notes which functions of the core run, in this thread and in those that begin from now on."""

    def __init__(self) -> None:
        self._ran: set[tuple[str, str]] = set()
        self._is_over = threading.Event()
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        file, name = place_of(frame.f_code)
        if event == "call" and name and not self._is_over.is_set():
            self._ran.add((file, name))
        if event == "return" and name == LAST:
            self._is_over.set()

    def functions(self, llm: LLM, prompt: Any) -> set[tuple[str, str]]:
        """Return those that run for a prompt until attention of the first layer has returned."""
        self._ran.clear()
        self._is_over.clear()
        sys.setprofile(self._note)
        try:
            llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        finally:
            sys.setprofile(None)
        return set(self._ran)


def print_journey() -> None:
    """Print the sums for a text, and for a text with an image."""
    pixels = np.random.default_rng(1).integers(0, 256, (2, 30, 40, 3), dtype=np.uint8)
    first, second = map(Image.fromarray, pixels)
    text = "USER: <image>\nWhat is this? ASSISTANT:"
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(
            str(make_tiny_checkpoint(Path(folder))),
            dtype="float32",
            max_model_len=256,
            num_kv_blocks=64,
            attention_backend="cpu",
            fuse_layers=False,
        ) as llm,
    ):
        for number, prompt in enumerate(("Once before", {"prompt": text, "multi_modal_data": {"image": first}})):
            llm.engine.add_request(str(number), prompt, SamplingParams(max_tokens=1))
            while llm.engine.has_unfinished_requests():
                llm.engine.step()
        tracer = Tracer()
        image = {"prompt": text, "multi_modal_data": {"image": second}}
        print(f"{'from generate() to attention, traced':40}{'functions':>12}{'lines':>8}{'files':>8}")
        for words, prompt in (("a text", "Hello there"), ("a text with an image", image)):
            ran = tracer.functions(llm, prompt)
            lines = sum(functions_of(file).get(name, 0) for file, name in ran)
            print(f"{words:40}{len(ran):>12}{lines:>8}{len({file for file, _ in ran}):>8}")


if __name__ == "__main__":
    print_journey()
