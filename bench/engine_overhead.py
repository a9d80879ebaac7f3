"""Host time of scheduling and of a whole step, with a model that takes no time.

1,000 requests, 64 running; then 64 running with 100, 1,000 and 10,000 waiting. Microseconds of `schedule` and `update`
per step, and the ratio to the shortest queue: it must not grow with the queue. Then decode steps of the whole engine,
inputs, sampling, text and outputs included, on captured steps whose logits exist already: what a GPU's step must
outlast for the GPU never to wait.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import cast

import torch

from corellm.config import SchedulerConfig
from corellm.engine.llm_engine import LLMEngine
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import ScheduledBatch, StepResult
from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.request import Request
from corellm.scheduling.scheduler import Scheduler
from corellm.worker.decode_graphs import DecodeGraphs, StaticInputs
from corellm.worker.input_batch import FlatBatch

RUNNING = 64
BLOCK = 16


def make_scheduler(policy: str) -> Scheduler:
    """Room for everything that runs; nothing is ever preempted."""
    return Scheduler(
        SchedulerConfig(scheduling_policy=policy),  # type: ignore[arg-type]
        BlockManager(RUNNING * 64 + 1, BLOCK, enable_prefix_caching=True),
        EncoderCache(4096),
        max_model_len=1024,
        max_num_seqs=RUNNING,
        max_num_batched_tokens=2048,
    )


def add(scheduler: Scheduler, count: int, tokens: int, seed: int) -> None:
    """Queue text requests with prompts of their own, 50 to 200 tokens long."""
    rng = random.Random(seed)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for i in range(count):
        prompt = [rng.randrange(1000) for _ in range(rng.randrange(50, 200))]
        scheduler.add_request(Request(f"{seed}-{i}", prompt, params, priority=rng.randrange(4)))


def free_model(batch: ScheduledBatch) -> StepResult:
    """Return a token for every chunk that samples."""
    return StepResult(sampled={chunk.request_id: [7] for chunk in batch.chunks if chunk.samples})


def run(scheduler: Scheduler, steps: int | None) -> list[float]:
    """Microseconds of scheduling in each step, until all requests finish or for `steps` steps."""
    spent: list[float] = []
    while scheduler.has_unfinished_requests() and (steps is None or len(spent) < steps):
        start = time.perf_counter()
        batch = scheduler.schedule()
        between = time.perf_counter()
        result = free_model(batch)
        resumed = time.perf_counter()
        scheduler.update(batch, result)
        spent.append(1e6 * (between - start + time.perf_counter() - resumed))
    return spent


class FreeGraphs:
    """Captured steps that only copy their inputs; stands in for `DecodeGraphs`."""

    asynchronous = False

    def __init__(self, num_seqs: int, vocab_size: int) -> None:
        self._inputs = StaticInputs(num_seqs, BLOCK, 1, torch.device("cpu"))
        self._logits = torch.randn(num_seqs, vocab_size)

    def fits(self, batch: FlatBatch) -> bool:
        """Whether all tokens are single ones."""
        return len(batch.metadata.seq_lens) == len(batch.input_ids)

    def run(self, batch: FlatBatch, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the same logits each time."""
        num_seqs = len(batch.input_ids)
        self._inputs.fill(batch, num_seqs, token_ids)
        return self._logits[:num_seqs]


def host_step(num_seqs: int, *, stream: bool) -> float:
    """Milliseconds of a decode step of `num_seqs` sequences."""
    engine = LLMEngine.from_kwargs(model="demo", max_num_seqs=num_seqs, num_kv_blocks=20 * num_seqs, max_model_len=256)
    engine.runner.graphs = cast(DecodeGraphs, FreeGraphs(num_seqs, engine.input_processor.vocab_size))
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    for i in range(num_seqs):
        engine.add_request(str(i), {"prompt_token_ids": [5] * 20}, params, stream=stream)
    spent = []
    for _ in range(140):
        start = time.perf_counter()
        outputs = engine.step()
        spent.append(1e3 * (time.perf_counter() - start))
        if failed := [output for output in outputs if output.finished]:
            raise RuntimeError(f"{failed[0]} ended before the measurement did")
    engine.shutdown()
    return statistics.median(spent[40:])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000, help="requests of the first table (default 1000)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens each generates (default 64)")
    parser.add_argument("--steps", type=int, default=400, help="steps measured per queue length (default 400)")
    args = parser.parse_args()
    scheduler = make_scheduler("fcfs")
    add(scheduler, args.requests, args.tokens, seed=0)
    spent = run(scheduler, None)
    print(f"{args.requests} requests of {args.tokens} tokens, {RUNNING} running: {len(spent)} steps,")
    print(f"  {statistics.median(spent):.0f} us per step (median), {statistics.fmean(spent):.0f} us (mean)")
    print(f"\n{'policy':10}{'waiting':>9}{'us per step (median)':>22}{'ratio':>8}")
    for policy in ("fcfs", "priority"):
        base = None
        for waiting in (100, 1_000, 10_000):
            scheduler = make_scheduler(policy)
            add(scheduler, RUNNING + waiting, 900, seed=1)
            run(scheduler, 20)  # until all that can run, does
            median = statistics.median(run(scheduler, args.steps))
            base = base or median
            print(f"{policy:10}{scheduler.num_waiting:>9}{median:>22.0f}{median / base:>7.2f}x")
    print(f"\n{'sequences':10}{'ms of the host per step':>25}{'with outputs streamed':>24}")
    for num_seqs in (1, 8, 64, 256):
        whole, streamed = (host_step(num_seqs, stream=stream) for stream in (False, True))
        print(f"{num_seqs:<10}{whole:>25.2f}{streamed:>24.2f}")


if __name__ == "__main__":
    main()
