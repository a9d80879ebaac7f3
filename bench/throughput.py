"""The whole engine against transformers' `generate`, same model, same requests, same process: ratios, not seconds.

A LLaVA of random weights; half of the requests have an image. transformers runs them one at a time, and, text-only
requests, in one left-padded batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import transformers
from PIL import Image

from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint


def timed(function: Callable[[], Any]) -> float:
    """Seconds of the faster of two runs, after the first that warms up."""
    function()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def requests(count: int) -> list[dict[str, Any]]:
    """Prompts, every second one with an image of its own."""
    prompts: list[dict[str, Any]] = []
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        question = f"Number {i}: how many objects are there, and what shape do they have?"
        prompts.append(
            {"prompt": f"USER: <image>\n{question} ASSISTANT:", "multi_modal_data": {"image": Image.fromarray(pixels)}}
            if i % 2
            else {"prompt": f"USER: {question} ASSISTANT:"}
        )
    return prompts


def with_transformers(
    path: Path, dtype: torch.dtype, prompts: list[dict[str, Any]], tokens: int
) -> tuple[float, float]:
    """Seconds for all requests one at a time, and for the text-only ones in one batch."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(path, dtype=dtype).eval()
    processor = transformers.AutoProcessor.from_pretrained(path)
    processor.tokenizer.padding_side = "left"
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}

    def one_at_a_time() -> None:
        for p in prompts:
            images = p["multi_modal_data"]["image"] if "multi_modal_data" in p else None
            inputs = processor(text=p["prompt"], images=images, return_tensors="pt").to(dtype)
            model.generate(**inputs, **options)

    def text_batch() -> None:
        text = [p["prompt"] for p in prompts if "multi_modal_data" not in p]
        model.generate(**processor(text=text, return_tensors="pt", padding=True), **options)

    with torch.inference_mode():
        return timed(one_at_a_time), timed(text_batch)


def main() -> None:
    """Print a table for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32, help="requests, half of them with an image (default 32)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens per output (default 32)")
    parser.add_argument("--hidden", type=int, default=512, help="width of the text model (default 512)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the text model (default 8)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prompts = requests(args.requests)
    text = [p for p in prompts if "multi_modal_data" not in p]
    params = SamplingParams(temperature=0, max_tokens=args.tokens, min_tokens=args.tokens)
    print(f"{args.requests} requests of {args.tokens} tokens, text model {args.hidden} x {args.layers}")
    print(f"{'dtype':10}{'corellm tok/s':>15}{'vs one at a time':>18}{'text: vs one padded batch':>27}")
    with tempfile.TemporaryDirectory() as directory:
        path = make_tiny_checkpoint(directory, hidden_size=args.hidden, num_layers=args.layers)
        for dtype in (torch.float32, torch.bfloat16):
            with LLM(str(path), dtype=str(dtype).removeprefix("torch."), enable_prefix_caching=False) as llm:
                ours = timed(lambda: llm.generate(prompts, params, use_tqdm=False))
                ours_text = timed(lambda: llm.generate(text, params, use_tqdm=False))
            single, batch = with_transformers(path, dtype, prompts, args.tokens)
            rate = args.requests * args.tokens / ours
            name = str(dtype).removeprefix("torch.")
            print(f"{name:10}{rate:>15.0f}{single / ours:>17.2f}x{batch / ours_text:>26.2f}x")


if __name__ == "__main__":
    main()
