"""Replicas on Ray beside one engine, and four ways for requests to find their replica, in one run.

`--what overhead`: one replica against the engine that `corellm serve` has, behind the same calls: time to the first
token, and output tokens per second of several streams at once. Times are the best of all rounds, taken in turns.

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.serve.request_router import PendingRequest, RunningReplica

from corellm import LLM, SamplingParams
from corellm.engine.process.messages import decode_to_engine
from corellm.sampling_params import RequestOutputKind
from corellm.serving import EngineClient, InputProcessor, Metric, ProcessedPrompt, ProcessLLM
from corellm_ray.client import ReplicatedLLM
from corellm_ray.cluster import joined
from corellm_ray.deployment import replicas
from corellm_ray.options import ReplicaOptions
from corellm_ray.routing import ROUTERS, Choices, Router

STREAMS = 8
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


async def rate(client: EngineClient, prompts: Sequence[ProcessedPrompt], num_tokens: int) -> float:
    """Output tokens per second of all prompts at once."""
    began = time.perf_counter()
    await asyncio.gather(*(first_token(client, prompt, num_tokens) for prompt in prompts))
    return len(prompts) * num_tokens / (time.perf_counter() - began)


def conversation(client: Any, image: Image.Image, question: str) -> ProcessedPrompt:
    """A prompt with an image, of anything that has an `input_processor`."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    processor: InputProcessor = getattr(client, "engine", client).input_processor
    return processor.process_chat([{"role": "user", "content": content}])


def picture(number: int) -> Image.Image:
    """An image like no other."""
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8))


async def compare_overhead(own: EngineClient, on_ray: EngineClient, rounds: int) -> dict[str, dict[str, float]]:
    """Best time to the first token, and best rate, of both."""
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for name, client in (("one process", own), ("one replica", on_ray)):
            # a text of its own in each round: no prefix of it is known
            texts = [f"In round {number}, what do you say of number {which}?" for which in range(STREAMS)]
            prompts = [client.input_processor.process(text) for text in texts]
            times = found.setdefault(name, {"first": [], "rate": []})
            times["first"] += [await first_token(client, prompt) for prompt in prompts[:4]]
            times["rate"].append(await rate(client, prompts, 64))
    return {
        name: {"first": min(times["first"]), "median": statistics.median(times["first"]), "rate": max(times["rate"])}
        for name, times in found.items()
    }


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


def overhead(rounds: int) -> None:
    """Print both."""
    options = ReplicaOptions(replicas="1", ray_address="local", replica_cpus=0.5, object_store_memory=MEMORY)
    with replicas(options, {"model": "demo"}) as on_ray:
        own = ProcessLLM("demo")
        try:
            found = asyncio.run(compare_overhead(own, on_ray, rounds))
        finally:
            own.close()
    for name, values in found.items():
        first, median = values["first"] * 1000, values["median"] * 1000
        print(f"{name}: first token {first:.1f} ms (median {median:.1f}), {values['rate']:.0f} output tokens/s")
    one, ray = found["one process"], found["one replica"]
    print(f"difference: first token {(ray['first'] - one['first']) * 1000:+.1f} ms "
          f"(median {(ray['median'] - one['median']) * 1000:+.1f}), rate {ray['rate'] / one['rate']:.2f}")  # fmt: skip


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
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path, help="also write the routers' rows, as JSON")
    parser.add_argument("--plot", type=Path, help="also draw the routers' rows, as SVG or PNG")
    args = parser.parse_args()
    chosen: Sequence[str] = args.what or ("overhead", "routing")
    if "overhead" in chosen:
        overhead(args.rounds)
    if "routing" in chosen:
        routing(args.output, args.plot)


if __name__ == "__main__":
    main()
