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
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import transformers
from PIL import Image

from corellm_llava.tiny import make_tiny_checkpoint


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    address: tuple[str, int]
    pids: tuple[int, ...]
    """Ids of the server's process, and of its engines'."""

    def cpu_seconds(self) -> float:
        """Processor time of all of them so far."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.pids)  # Linux's clock of a process


@contextmanager
def serving(model: Path, engines: int, streams: int, dtype: str) -> Iterator[Server]:
    """A server with so many engines, which take so many requests at once together."""
    command = [
        sys.executable, "-m", "corellm", "serve", str(model), "--served-model-name", "m", "--port", "0",
        "--dtype", dtype, "--data-parallel-size", str(engines), "--max-num-seqs", str(-(-streams // engines)),
        "--log-level", "warning",
        "--kv-cache-memory", f"{256 // engines}M",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://([\d.]+):(\d+)/v1", process.stdout.readline())
            assert found is not None, "the server did not start"
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
            own = [pid for pid in children if b"engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            assert len(own) == engines
            yield Server((found[1], int(found[2])), (process.pid, *own))
        finally:
            process.terminate()


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
    began, taken = time.perf_counter(), server.cpu_seconds()
    with ThreadPoolExecutor(len(bodies)) as pool:
        firsts = sorted(pool.map(lambda body: first_token(server.address, body), bodies))
    total = len(bodies) * tokens
    return (
        total / (time.perf_counter() - began),
        total / (server.cpu_seconds() - taken),
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
                serving(path, kinds[0], args.streams, args.dtype) as one,
                serving(path, kinds[1], args.streams, args.dtype) as two,
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
