"""Replicas on Ray beside one engine, and four ways for requests to find their replica, in one run.

`--what overhead`: `corellm serve --replicas 1` against `corellm serve` over HTTP, both on all processors: time to the
first token of one request at a time, and output tokens per second of several streams at once, half of them with images.
The servers run side by side and are asked in turns. Of `demo`, whose step is short, and of LLaVAs of random weights.

`--what routing`: two replicas, whose caches hold half of the images each; questions about shared images, in random
order. Ray Serve's own prefix-aware router is given the prompts' tokens as its text, as it knows no images.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from corellm_ray.cluster import joined  # isort: skip  # first: it sets what Ray reads when it is imported

import numpy as np
import transformers
from PIL import Image
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.serve.request_router import PendingRequest, RunningReplica

from bench.data_parallel import first_token as first_over_http
from bench.data_parallel import requests
from bench.server_process import serving
from corellm import LLM, SamplingParams
from corellm.engine.process.messages import decode_to_engine
from corellm.sampling_params import RequestOutputKind
from corellm.serving import EngineClient, InputProcessor, Metric, ProcessedPrompt
from corellm.system.process import usable_cpus
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_ray.client import ReplicatedLLM
from corellm_ray.deployment import replicas
from corellm_ray.options import ReplicaOptions
from corellm_ray.routing import ROUTERS, Choices, Router

STREAMS, TOKENS = 8, 64
IMAGES, QUESTIONS = 64, 6
MEMORY = 128 << 20


class RaysOwnRouter(Router, PrefixCacheAffinityRouter):  # type: ignore[misc]
    """Ray Serve's prefix-aware router, which is told the tokens of prompts."""

    async def choose(self, replicas: list[RunningReplica], request: PendingRequest) -> Choices:
        """Return what it chooses."""
        chosen: Choices = await PrefixCacheAffinityRouter.choose_replicas(self, replicas, request)
        return chosen

    def _extract_text_from_request(self, pending_request: PendingRequest) -> str:
        first = pending_request.args[0]
        if not isinstance(first, bytes):
            return "-"  # a call, which is no prompt
        return "".join(chr(0x100 + token) for token in decode_to_engine(first).token_ids)


def streaming(num_tokens: int) -> SamplingParams:
    """Greedy, each token as it comes."""
    kind = RequestOutputKind.DELTA
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, output_kind=kind)


async def first_token(client: EngineClient, prompt: ProcessedPrompt, num_tokens: int = 2) -> float:
    """Seconds to the first token of a request, which is read to its end."""
    began, first = time.perf_counter(), 0.0
    async for _ in client.generate(prompt, streaming(num_tokens)):
        first = first or time.perf_counter() - began
    return first


def conversation(client: Any, image: Image.Image, question: str) -> ProcessedPrompt:
    """A prompt with an image, of anything that has an `input_processor`."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    processor: InputProcessor = getattr(client, "engine", client).input_processor
    return processor.process_chat([{"role": "user", "content": content}])


def picture(number: int) -> Image.Image:
    """An image like no other."""
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8))


def compare_overhead(model: Path, rounds: int) -> list[tuple[float, float]]:
    """Median seconds to the first token, and best rate, of one engine and of one replica."""
    options = ("--max-num-seqs", str(STREAMS), "--kv-cache-memory", "128M")
    replica = (
        "--replicas", "1", "--ray-address", "local", "--replica-cpus", str(usable_cpus()),
        "--object-store-memory", str(MEMORY),
    )  # fmt: skip
    with serving(model, *options) as own, serving(model, *options, *replica) as on_ray:
        found: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
        for turn in range(rounds + 1):  # the first one warms up
            for (firsts, rates), server in zip(found, (own, on_ray), strict=True):
                one_by_one = [first_over_http(server.address, body) for body in requests(4, 2 * turn, 2)]
                firsts += one_by_one if turn else ()
                bodies, began = requests(STREAMS, 2 * turn + 1, TOKENS), time.perf_counter()
                with ThreadPoolExecutor(STREAMS) as pool:
                    list(pool.map(partial(first_over_http, server.address), bodies))
                rates += [STREAMS * TOKENS / (time.perf_counter() - began)] if turn else ()
    return [(statistics.median(firsts), max(rates)) for firsts, rates in found]


def total(metrics: Sequence[Metric], name: str) -> float:
    """A metric's value."""
    return next(metric.value for metric in metrics if metric.name == f"corellm:{name}")


async def measure_routing(client: ReplicatedLLM, seed: int) -> dict[str, float]:
    """What one router makes of the traffic."""
    asked = [
        conversation(client, picture(image), f"Question {question}: what is it?")
        for image in range(IMAGES)
        for question in range(QUESTIONS)
    ]
    random.Random(seed).shuffle(asked)
    before = await client.get_metrics_by_replica()
    waiting, firsts = iter(asked), list[float]()

    async def ask_on() -> None:
        for prompt in waiting:
            firsts.append(await first_token(client, prompt, 4))

    await asyncio.gather(*(ask_on() for _ in range(STREAMS)))
    after = await client.get_metrics_by_replica()

    def grown(name: str) -> list[float]:
        return [total(after[replica], name) - total(before[replica], name) for replica in after]

    tokens = grown("prompt_tokens")
    return {
        "prefix": sum(grown("prefix_cache_hits")) / sum(grown("prefix_cache_queries")),
        # a request whose image the prefix cache has asks for no encoder output
        "images": 1 - (sum(grown("encoder_cache_queries")) - sum(grown("encoder_cache_hits"))) / len(asked),
        "first": statistics.median(firsts),
        "late": sorted(firsts)[int(0.9 * len(firsts))],
        "busiest": max(tokens) / sum(tokens) * len(tokens),
    }  # fmt: skip


@contextmanager
def routed_by(router: type[Router]) -> Iterator[ReplicaOptions]:
    """Options of two replicas with a router."""
    usual, ROUTERS["prefix"] = ROUTERS["prefix"], router
    try:
        yield ReplicaOptions(
            replicas="2", replica_cpus=0.5, object_store_memory=MEMORY, replica_drain_timeout=5,
            replica_app=router.__name__,  # Ray Serve keeps the router that an application had first in a process
        )  # fmt: skip
    finally:
        ROUTERS["prefix"] = usual


def overhead(rounds: int, sizes: Sequence[str]) -> None:
    """Print a row for each model."""
    print(f"{'model':10}{'first token':>13}{'replica':>10}{'more':>10}{'tokens/s':>11}{'replica':>9}{'ratio':>7}")
    with TemporaryDirectory() as folder:
        for size in ("demo", *sizes):
            path = Path(size)
            if size != "demo":
                width, layers = map(int, size.split("x"))
                path = make_tiny_checkpoint(Path(folder, size), hidden_size=width, num_layers=layers)
            (first, rate), (first_of_ray, rate_of_ray) = compare_overhead(path, rounds)
            more = (first_of_ray - first) * 1000
            print(f"{size:10}{first * 1000:10.1f} ms{first_of_ray * 1000:7.1f} ms{more:+7.1f} ms{rate:11.0f}"
                  f"{rate_of_ray:9.0f}{rate_of_ray / rate:7.2f}", flush=True)  # fmt: skip


def draw(found: Mapping[str, Mapping[str, float]], file: Path) -> None:
    """Draw what the caches had and how long the first token took, a bar for each router."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 2.4), layout="constrained")
    panels = {"prefix": "prompt tokens cached, %", "images": "images encoded already, %", "first": "first token, ms"}
    for axes, (name, title) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        values = [row[name] * (1000 if name == "first" else 100) for row in found.values()]
        colours = ["#2060b0" if router == "prefix" else "#a0a0a0" for router in found]
        bars = axes.barh(list(found), values, color=colours)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.set_xlim(0, max(values) * 1.15)
        axes.tick_params(labelsize=8, left=False)
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.invert_yaxis()
    figure.savefig(file, dpi=110)


def routing(output: Path | None, plot: Path | None) -> None:
    """Print a row for each router."""
    from bench.replicas import RaysOwnRouter as rays  # by its module's name, as Ray Serve's controller finds it

    routers: dict[str, type[Router]] = {
        "round robin": ROUTERS["round-robin"], "two choices": ROUTERS["load"], "Ray Serve's prefix-aware": rays,
        "prefix": ROUTERS["prefix"],
    }  # fmt: skip
    found: dict[str, dict[str, float]] = {}
    print(f"{'router':26}{'prefix hits':>12}{'image hits':>12}{'first token':>13}{'90%':>10}{'busiest':>9}")
    with joined("local", num_cpus=2, object_store_memory=MEMORY):
        for name, router in routers.items():
            with routed_by(router) as options, replicas(options, caches("demo")) as client:
                values = found[name] = asyncio.run(measure_routing(client, seed=0))
            print(f"{name:26}{values['prefix']:12.0%}{values['images']:12.0%}{values['first'] * 1000:10.0f} ms"
                  f"{values['late'] * 1000:7.0f} ms{values['busiest']:9.2f}", flush=True)  # fmt: skip
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw(found, plot)


def caches(model: str) -> dict[str, Any]:
    """Arguments of an engine whose caches hold half of the images, beside the requests that run."""
    with LLM(model) as llm:
        longest = len(conversation(llm, picture(0), "Question 0: what is it?").token_ids) + 4
    blocks = -(-longest // 16)
    return {"model": model, "max_num_seqs": STREAMS, "num_kv_blocks": blocks * (IMAGES // 2)}


def main() -> None:
    """Measure what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("overhead", "routing"), action="append", help="default: both")
    parser.add_argument("--rounds", type=int, default=4, help="of the overhead (default 4)")
    parser.add_argument(
        "--sizes", nargs="*", default=["512x8"], metavar="WxL", help="widths and layers of models beside demo"
    )
    parser.add_argument("--output", type=Path, help="also write the routers' rows, as JSON")
    parser.add_argument("--plot", type=Path, help="also draw the routers' rows, as SVG or PNG")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen: Sequence[str] = args.what or ("overhead", "routing")
    if "overhead" in chosen:
        overhead(args.rounds, args.sizes)
    if "routing" in chosen:
        routing(args.output, args.plot)


if __name__ == "__main__":
    main()
