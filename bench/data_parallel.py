"""Two engines of one core each against one engine of two cores: same model, same requests, same run.

LLaVAs of random weights behind `corellm serve`; requests with an image and without, as streams, in turns. Tokens per
second are of a machine that does nothing else; tokens per second of processor time, that all processes of a server take
together, are the figure to compare on a machine that others use, too.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import transformers
from PIL import Image

from bench.server_process import Server, serving
from corellm_llava.tiny import make_tiny_checkpoint


def engines(number: int, streams: int, dtype: str) -> list[str]:
    """Options of a server with so many engines, which take so many requests at once together."""
    return [
        "--dtype", dtype, "--data-parallel-size", str(number), "--max-num-seqs", str(-(-streams // number)),
        "--kv-cache-memory", f"{256 // number}M",
    ]  # fmt: skip


def requests(count: int, seed: int, tokens: int) -> list[bytes]:
    """Bodies of conversations: every other one is about one of four images."""
    images = []
    for image_seed in range(4):
        stream = io.BytesIO()
        Image.frombytes("RGB", (56, 56), random.Random(seed * 4 + image_seed).randbytes(56 * 56 * 3)).save(
            stream, "PNG"
        )
        images.append("data:image/png;base64," + base64.b64encode(stream.getvalue()).decode())
    bodies = []
    for number in range(count):
        content: list[dict[str, Any]] = [{"type": "text", "text": f"Number {seed}/{number}: what is in the picture?"}]
        if number % 2:
            content.insert(0, {"type": "image_url", "image_url": {"url": images[number // 2 % 4]}})
        messages = [{"role": "user", "content": content}]
        body = {"model": "m", "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        bodies.append(json.dumps({**body, "stream": True}).encode())
    return bodies


def first_token(address: tuple[str, int], body: bytes) -> float:
    """Send a request and read all of its response; returns the seconds to its first token."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    start = time.perf_counter()
    with socket.create_connection(address) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        received, first = b"", 0.0
        while data := connection.recv(1 << 16):
            received += data
            if not first and b'"content"' in received:
                first = time.perf_counter() - start
    assert b"data: [DONE]" in received, received[-500:]
    return first


def run(server: Server, bodies: Sequence[bytes], tokens: int) -> tuple[float, float, float]:
    """Tokens per second, tokens per second of processor time, and the median seconds to the first token."""
    began, taken = time.perf_counter(), sum(server.cpu_times())
    with ThreadPoolExecutor(len(bodies)) as pool:
        firsts = sorted(pool.map(lambda body: first_token(server.address, body), bodies))
    total = len(bodies) * tokens
    return (
        total / (time.perf_counter() - began),
        total / (sum(server.cpu_times()) - taken),
        firsts[len(firsts) // 2],
    )


def main() -> None:
    """Print one line per model and kind of server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16, help="requests at once (default 16)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per output (default 48)")
    parser.add_argument(
        "--sizes", nargs="+", default=["64x2", "512x8", "1024x8"], metavar="WxL", help="widths and layers of the models"
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the weights (default bfloat16)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (default 3)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"{args.streams} streams of {args.tokens} tokens, half of them about images, {args.dtype}")
    print(f"{'model':10}{'engines':>9}{'tok/s':>9}{'tok/CPU s':>11}{'first token ms':>16}")
    for size in args.sizes:
        width, layers = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as directory:
            path = make_tiny_checkpoint(directory, hidden_size=width, num_layers=layers)
            kinds = (1, 2)
            with (
                serving(path, *engines(kinds[0], args.streams, args.dtype)) as one,
                serving(path, *engines(kinds[1], args.streams, args.dtype)) as two,
            ):
                found: dict[int, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
                for turn in range(args.rounds + 1):  # the first one warms up
                    bodies = requests(args.streams, turn, args.tokens)
                    for kind, server in zip(kinds, (one, two), strict=True):
                        found[kind].append(run(server, bodies, args.tokens))
            for kind in kinds:
                rate, per_cpu, first = (list(values) for values in zip(*found[kind][1:], strict=True))
                print(f"{size:10}{kind:>9}{max(rate):>9.0f}{max(per_cpu):>11.0f}{min(first) * 1e3:>16.1f}", flush=True)


if __name__ == "__main__":
    main()
