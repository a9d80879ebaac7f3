"""The first requests of new replicas, ten at once, again and again, each time of new replicas and by a new router.

`python -m extensions.ray.tests.first_requests MODEL --times 10` exits with 1 if an answer is not that of one engine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time

from corellm_ray.cluster import joined  # isort: skip  # first: it sets what Ray reads when it is imported

from corellm import LLM, SamplingParams
from corellm_ray.client import ReplicatedLLM
from corellm_ray.deployment import replicas
from corellm_ray.options import ReplicaOptions
from corellm_ray.routing import ROUTERS
from extensions.ray.tests.conftest import ENGINE

PROMPTS = [f"Tell me of number {number}." for number in range(10)]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MOST_SECONDS = 120


async def answers(client: ReplicatedLLM) -> tuple[list[list[int]], int]:
    """What all prompts give at once, and how many replicas say of themselves that they are there."""

    async def answer(prompt: str) -> list[int]:
        token_ids: list[int] = []
        async for output in client.generate(prompt, PARAMS):
            token_ids = output.outputs[0].token_ids
        return token_ids

    found = await asyncio.wait_for(asyncio.gather(*map(answer, PROMPTS)), MOST_SECONDS)
    return found, len(await client.get_metrics_by_replica())


def main() -> None:
    """Ask as often as was told, with each router in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    with LLM(args.model, **ENGINE) as llm:
        expected = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS)]
    with joined("local", num_cpus=2, object_store_memory=80 << 20):
        for number, router in zip(range(1, args.times + 1), itertools.cycle(ROUTERS), strict=False):
            options = ReplicaOptions(
                replicas="2", replica_cpus=0.5, replica_drain_timeout=5, replica_router=router  # type: ignore[arg-type]
            )  # fmt: skip
            with replicas(options, {"model": args.model, **ENGINE}) as client:
                began = time.monotonic()
                found, num_replicas = asyncio.run(answers(client))
                seconds = time.monotonic() - began
            if found != expected or num_replicas != 2:
                raise SystemExit(f"{router}, number {number}: {num_replicas} replicas answer {found}, not {expected}")
            print(f"{number}: {router}, {len(found)} answers as of one engine in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
