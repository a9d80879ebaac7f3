"""Streams over HTTP against the offline API, same model, same requests, same run: ratios, not seconds.

LLaVAs of random weights. Text requests through `LLM.generate`, then as streams from `corellm serve`, in turns; the
better round of each counts. Time to first token is of one request at a time, the median. The client is this process and
reads no more than it must: what the server takes of the processors that the engine needs, is measured. CPU time is what
the API process and the engine's process take for a token: the figure to compare on a machine that others use, too.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import transformers

from bench.server_process import Server, serving
from corellm import LLM, SamplingParams
from corellm_llava.tiny import make_tiny_checkpoint


def send(address: tuple[str, int], prompt: str, tokens: int) -> socket.socket:
    """A connection on which a completion was asked for, as a stream."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    connection = socket.create_connection(address)
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
    return connection


def rate_over_http(server: Server, prompts: Sequence[str], tokens: int) -> float:
    """Output tokens per second of all prompts at once."""
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for prompt in prompts:
            selector.register(send(server.address, prompt, tokens), selectors.EVENT_READ, bytearray())
        while selector.get_map():
            for key, _ in selector.select():
                connection: Any = key.fileobj
                if data := connection.recv(1 << 16):
                    key.data.extend(data)
                    continue
                assert b"data: [DONE]" in key.data, key.data
                selector.unregister(connection)
                connection.close()
    return len(prompts) * tokens / (time.perf_counter() - start)


def rate_offline(llm: LLM, prompts: Sequence[str], tokens: int) -> float:
    """The same through `LLM.generate`."""
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
    return len(prompts) * tokens / (time.perf_counter() - start)


def first_tokens(llm: LLM, server: Server, count: int) -> tuple[float, float]:
    """Median seconds to the first token: offline, over HTTP."""
    offline, online = [], []
    for i in range(count):
        prompt = question(1000 + i)
        start = time.perf_counter()
        llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), use_tqdm=False)
        offline.append(time.perf_counter() - start)
        start = time.perf_counter()
        with send(server.address, prompt, 2) as connection:
            while b"data: " not in connection.recv(1 << 16):
                pass
            online.append(time.perf_counter() - start)
            while connection.recv(1 << 16):  # or the next request runs beside the rest of this one
                pass
    return statistics.median(offline), statistics.median(online)


def question(number: int) -> str:
    """A prompt of its own."""
    return f"USER: Number {number}: how many objects are there, and what shape do they have? ASSISTANT:"


def measure(path: Path, dtype: str, args: argparse.Namespace) -> str:
    """The line of one model."""
    prompts = [question(i) for i in range(args.streams)]
    offline, online, cpu = [], [], []
    with (
        LLM(str(path), dtype=dtype, max_num_seqs=args.streams, enable_prefix_caching=False) as llm,
        serving(path, "--dtype", dtype, "--max-num-seqs", str(args.streams), "--no-enable-prefix-caching") as server,
    ):
        for _ in range(args.rounds + 1):  # the first one warms up
            offline.append(rate_offline(llm, prompts, args.tokens))
            before = server.cpu_times()
            online.append(rate_over_http(server, prompts, args.tokens))
            cpu.append([after - b for after, b in zip(server.cpu_times(), before, strict=True)])
        ours, theirs = first_tokens(llm, server, 20)
    best, served = max(offline[1:]), max(online[1:])
    api, engine = (min(times) * 1e6 / args.streams / args.tokens for times in zip(*cpu[1:], strict=True))
    return (
        f"{best:>15.0f}{served:>12.0f}{served / best:>7.2f}{ours * 1e3:>16.1f}{theirs * 1e3:>9.1f}"
        f"{api:>19.0f}{engine:>11.0f}"
    )


def main() -> None:
    """Print one line per model and dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32, help="requests at once (default 32)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per output (default 64)")
    parser.add_argument(
        "--sizes", nargs="+", default=["512x8", "64x2"], metavar="WxL", help="widths and layers of the text models"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each (default 2)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"{args.streams} streams of {args.tokens} tokens")
    print(
        f"{'model':10}{'dtype':10}{'offline tok/s':>15}{'HTTP tok/s':>12}{'ratio':>7}{'first token ms':>16}"
        f"{'HTTP ms':>9}{'API CPU us/token':>19}{'engine':>11}"
    )
    for size in args.sizes:
        width, layers = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as directory:
            path = make_tiny_checkpoint(directory, hidden_size=width, num_layers=layers)
            for dtype in ("float32", "bfloat16"):
                print(f"{size:10}{dtype:10}{measure(path, dtype, args)}", flush=True)


if __name__ == "__main__":
    main()
