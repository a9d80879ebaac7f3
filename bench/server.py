"""Streams over HTTP against the offline API, same model, same requests, same run: ratios, not seconds.

A LLaVA of random weights. Text requests through `LLM.generate`, then as streams from `corellm serve`, in turns; the
better round of each counts. Time to first token is of one request at a time, the median. The client is this process and
reads no more than it must: what the server takes of the processors that the engine needs, is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import transformers

from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint


@contextmanager
def serving(model: Path, dtype: str, streams: int) -> Iterator[tuple[str, int]]:
    """A server's host and port."""
    command = [
        sys.executable, "-m", "corellm", "serve", str(model), "--served-model-name", "m", "--port", "0",
        "--dtype", dtype, "--max-num-seqs", str(streams), "--no-enable-prefix-caching", "--log-level", "warning",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://([\d.]+):(\d+)/v1", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield found[1], int(found[2])
        finally:
            process.terminate()


async def stream(address: tuple[str, int], prompt: str, tokens: int) -> float:
    """Read a completion as it comes; returns the seconds until its first token."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(*address)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
    received, first = b"", 0.0
    while data := await reader.read(1 << 16):
        received = received[-100:] + data
        if not first and b"data: " in received:
            first = time.perf_counter() - start
    writer.close()
    assert b"data: [DONE]" in received, received
    return first


def rate_over_http(address: tuple[str, int], prompts: Sequence[str], tokens: int) -> float:
    """Output tokens per second of all prompts at once."""

    async def all_at_once() -> None:
        await asyncio.gather(*(stream(address, prompt, tokens) for prompt in prompts))

    start = time.perf_counter()
    asyncio.run(all_at_once())
    return len(prompts) * tokens / (time.perf_counter() - start)


def rate_offline(llm: LLM, prompts: Sequence[str], tokens: int) -> float:
    """The same through `LLM.generate`."""
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
    return len(prompts) * tokens / (time.perf_counter() - start)


def first_tokens(llm: LLM, address: tuple[str, int], count: int) -> tuple[float, float]:
    """Median seconds to the first token: offline, over HTTP."""
    offline, online = [], []
    for i in range(count):
        prompt = question(1000 + i)
        start = time.perf_counter()
        llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), use_tqdm=False)
        offline.append(time.perf_counter() - start)
        online.append(asyncio.run(stream(address, prompt, 2)))
    return statistics.median(offline), statistics.median(online)


def question(number: int) -> str:
    """A prompt of its own."""
    return f"USER: Number {number}: how many objects are there, and what shape do they have? ASSISTANT:"


def main() -> None:
    """Print one line per dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32, help="requests at once (default 32)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per output (default 64)")
    parser.add_argument("--hidden", type=int, default=512, help="width of the text model (default 512)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the text model (default 8)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each (default 2)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    prompts = [question(i) for i in range(args.streams)]
    print(f"{args.streams} streams of {args.tokens} tokens, text model {args.hidden} x {args.layers}")
    print(f"{'dtype':10}{'offline tok/s':>15}{'HTTP tok/s':>12}{'ratio':>7}{'first token ms':>16}{'HTTP ms':>9}")
    with tempfile.TemporaryDirectory() as directory:
        path = make_tiny_checkpoint(directory, hidden_size=args.hidden, num_layers=args.layers)
        for dtype in ("float32", "bfloat16"):
            offline, online = [], []
            with (
                LLM(str(path), dtype=dtype, max_num_seqs=args.streams, enable_prefix_caching=False) as llm,
                serving(path, dtype, args.streams) as address,
            ):
                for _ in range(args.rounds + 1):  # the first one warms up
                    offline.append(rate_offline(llm, prompts, args.tokens))
                    online.append(rate_over_http(address, prompts, args.tokens))
                ours, theirs = first_tokens(llm, address, 20)
            best, served = max(offline[1:]), max(online[1:])
            print(f"{dtype:10}{best:>15.0f}{served:>12.0f}{served / best:>7.2f}{ours * 1e3:>16.1f}{theirs * 1e3:>9.1f}")


if __name__ == "__main__":
    main()
