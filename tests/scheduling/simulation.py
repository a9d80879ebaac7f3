"""A scheduler and a fake worker run against each other, with every promise checked at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from corellm.config import SchedulerConfig
from corellm.multimodal.inputs import MultiModalFeature, embedded_spans
from corellm.scheduling.batch import ScheduledBatch, StepResult
from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.request import Request, RequestStatus
from corellm.scheduling.scheduler import Scheduler
from corellm.scheduling.window_blocks import WindowBlocks, most_places
from tests.scheduling.fake_worker import VOCABULARY, FakeWorker, expected_output, make_feature, make_request, spans_of

MAX_PREEMPTIONS = 8
LONGEST_PROMPT = 9 + 3 * (4 + 2) + 5
"""Length of the longest prompt of `random_request`."""


@dataclass(kw_only=True)
class Setup:
    """One engine's sizes and modes."""

    block_size: int = 4
    num_blocks: int = 65
    num_host_blocks: int = 0
    encoder_capacity: int = 64
    encoder_step: int | None = None
    max_model_len: int = 256
    max_num_batched_tokens: int = 64
    max_num_seqs: int = 8
    chunked: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    preemption: Literal["recompute", "swap"] = "recompute"
    prefix_caching: bool = True
    window: int | None = None
    """Most tokens that a token sees in layers where blocks have places of their own; None without such layers."""
    drafts: bool = False
    """Whether the worker guesses tokens."""


@dataclass
class Simulation:
    """Steps a scheduler and checks what each step promises; `now` is its clock, one second per step."""

    setup: Setup = field(default_factory=Setup)
    now: float = 0.0

    def __post_init__(self) -> None:
        setup = self.setup
        self.blocks = BlockManager(
            setup.num_blocks,
            setup.block_size,
            enable_prefix_caching=setup.prefix_caching,
            num_host_blocks=setup.num_host_blocks,
            make_users=self.make_users,
        )
        self.encoder_cache = EncoderCache(setup.encoder_capacity, setup.encoder_step)
        self.scheduler = Scheduler(
            SchedulerConfig(
                enable_chunked_prefill=setup.chunked,
                scheduling_policy=setup.policy,
                preemption_mode=setup.preemption,
            ),
            self.blocks,
            self.encoder_cache,
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            clock=lambda: self.now,
        )
        self.worker = FakeWorker(
            setup.block_size,
            setup.encoder_capacity,
            self.encoder_cache.step_embeds,
            setup.window,
            drafts=setup.drafts,
        )
        self.requests: list[Request] = []
        self.num_ahead = 0
        self._ahead: tuple[ScheduledBatch, StepResult] | None = None

    def make_users(self, pool: BlockPool) -> Sequence[BlockUser]:
        """What holds blocks beside the tables: windows, with as few places as the scheduler can do with."""
        setup = self.setup
        if setup.window is None:
            return []
        step_tokens = setup.max_num_batched_tokens + min(LONGEST_PROMPT, setup.max_model_len)  # of a span beyond it
        places = min(most_places(setup.window, setup.block_size, setup.max_num_seqs, step_tokens), setup.num_blocks)
        return [WindowBlocks(setup.num_blocks, places, setup.block_size, setup.window)]

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.requests.append(request)
            self.scheduler.add_request(request)

    def schedule(self) -> ScheduledBatch:
        batch = self.scheduler.schedule()
        self.check_batch(batch)
        return batch

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[Request]:
        changed = self.scheduler.update(batch, result)
        self.check_integrity()
        self.now += 1.0
        return changed

    def step_ahead(self, between: Callable[[], None] = lambda: None, **faults: Any) -> ScheduledBatch:
        """One whole step, with the next one run before its results are taken in, wherever that is possible.

        `between` is called after that, before the results are taken in.
        """
        if self._ahead is None:
            batch = self.schedule()
            result = self.worker.execute(batch, **faults)
        else:
            batch, result = self._ahead
        ahead = self.scheduler.schedule_ahead()
        self._ahead = None if ahead is None else (ahead, self.worker.execute_ahead(ahead, result))
        self.num_ahead += ahead is not None
        self.check_integrity()
        between()
        self.update(batch, result)
        if self._ahead is not None and not self.scheduler.has_unfinished_requests():
            self.update(*self._ahead)
            self._ahead = None
        return batch

    def step(self, **faults: Any) -> ScheduledBatch:
        """One whole step; `faults` go to `FakeWorker.execute`."""
        batch = self.schedule()
        self.update(batch, self.worker.execute(batch, **faults))
        return batch

    def run(self, max_steps: int = 10_000) -> list[ScheduledBatch]:
        """Step until everything is finished; every step must compute something."""
        batches = []
        while self.scheduler.has_unfinished_requests():
            batches.append(self.step())
            assert batches[-1].chunks, "a step without progress"
            assert len(batches) < max_steps, "the simulation does not end"
        self.check_end()
        return batches

    def check_batch(self, batch: ScheduledBatch) -> None:
        setup = self.setup
        self.check_integrity()
        self.check_budget(batch)
        assert self.scheduler.num_running <= setup.max_num_seqs, "too many sequences"
        assert not (batch.swap_out and (batch.swap_in or batch.new)), "admitted or resumed in a step that preempted"
        names = [chunk.request_id for chunk in batch.chunks]
        assert len(set(names)) == len(names) <= setup.max_num_seqs
        requests = [self.scheduler.requests[name] for name in names]
        pairs = zip(batch.chunks, requests, strict=True)
        is_prefill = [not (c.num_tokens == 1 and c.samples and c.start >= r.num_prompt_tokens) for c, r in pairs]
        assert is_prefill == sorted(is_prefill), "a decode stands behind a prefill"
        known = (self.worker.sequences.keys() - set(batch.released)) | {sequence.request_id for sequence in batch.new}
        assert known == {request.request_id for request in self.scheduler.running}, "the worker knows others"
        new = {sequence.request_id for sequence in batch.new}
        parked = ((self.worker.parked - set(batch.released)) | set(batch.swapped)) - new
        is_swapped = {name for name, r in self.scheduler.requests.items() if r.status is RequestStatus.SWAPPED}
        assert parked == is_swapped, "the worker parks others"

    def check_budget(self, batch: ScheduledBatch) -> None:
        """The token budget may be exceeded by the only chunk of a prompt, to the end of a span that it begins in."""
        if batch.num_tokens <= self.setup.max_num_batched_tokens:
            return
        chunk, stop = batch.chunks[-1], batch.chunks[-1].start + batch.chunks[-1].num_tokens
        assert batch.num_tokens - chunk.num_tokens < self.setup.max_num_batched_tokens, "token budget exceeded"
        spans = spans_of(self.scheduler.requests[chunk.request_id])
        assert any(first <= chunk.start and stop == end for first, end in spans), "token budget exceeded"

    def check_integrity(self) -> None:
        self.blocks.check_integrity()
        self.encoder_cache.check_integrity()

    def check_end(self) -> None:
        """Everything ended, as if each request had run alone, and everything was given back."""
        limit = self.scheduler.limits.max_total_tokens
        for request in self.requests:
            assert request.status.is_finished
            assert request.num_preemptions <= MAX_PREEMPTIONS, f"{request.num_preemptions} preemptions"
            if request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH):
                assert request.output_token_ids == expected_output(request, limit)
            elif request.status is not RequestStatus.FINISHED_IGNORED:
                assert request.output_token_ids == expected_output(request, limit)[: len(request.output_token_ids)]
        assert self.blocks.num_free_blocks == self.blocks.capacity, "blocks are lost"
        assert self.encoder_cache.referenced_embeds == 0, "encoder references are lost"
        assert not self.scheduler.running
        assert not self.scheduler.waiting
        assert not self.scheduler.swapped


def random_setup(rng: Random, **fixed: Any) -> Setup:
    """Tiny caches: nearly every step is short of something."""
    drawn: dict[str, Any] = {
        "block_size": rng.choice([1, 2, 4]),
        "num_blocks": rng.randint(8, 30),
        "num_host_blocks": rng.choice([0, 5, 60]),
        "encoder_capacity": (capacity := rng.randint(4, 12)),
        "encoder_step": rng.choice([None, rng.randint(4, capacity)]),
        "max_model_len": rng.choice([20, 40, 80]),
        "max_num_batched_tokens": rng.choice([1, 3, 8, 24, 48]),
        "max_num_seqs": rng.randint(1, 8),
        "chunked": rng.random() < 0.7,
        "policy": rng.choice(["fcfs", "priority"]),
        "preemption": rng.choice(["recompute", "swap"]),
        "prefix_caching": rng.random() < 0.7,
        "window": rng.choice([None, None, 1, 3, 9]),
        "drafts": rng.random() < 0.3,
    }
    return Setup(**{**drawn, **fixed})


def random_request(rng: Random, name: str) -> Request:
    """Few distinct beginnings and items, so that much is shared."""
    prompt = [rng.choice([1, 2])] * rng.randint(1, 9)
    features: list[MultiModalFeature] = []
    for item in range(rng.choice([0, 0, 1, 2, 3])):
        number = rng.randint(0, 4)
        length = 2 + number % 3
        is_embed = [False] + [True] * (length - 1) if number % 2 else None
        features.append(make_feature(f"image-{number}", len(prompt), length, is_embed, item))
        prompt += [3] * length + [rng.choice([4, 5])] * rng.randint(0, 2)
    prompt += [rng.randrange(1, VOCABULARY) for _ in range(rng.choice([0, 0, 1, 5]))]
    spans = {
        "none": [],
        "items": embedded_spans(features),
        "prompt": [(0, len(prompt))],
        "beginning": [(0, 1 + len(prompt) // 2)],
    }[rng.choice(["none", "none", "items", "items", "prompt", "beginning"])]
    return make_request(
        name,
        prompt,
        features,
        spans=[(start, end) for start, end in spans if end - start > 1],
        priority=rng.randint(0, 2),
        max_tokens=rng.choice([1, 2, 8, 30, None]),
        ignore_eos=rng.random() < 0.5,
        prompt_logprobs=0 if rng.random() < 0.1 else None,
    )


def run_random(rng: Random, *, num_requests: int, faults: float = 0.0, ahead: bool = False, **fixed: Any) -> Simulation:
    """Random requests on a random engine to their end, with aborts and failures at the rate `faults` per step.

    With `ahead` each step is followed by the next before its results are taken in, wherever that is possible.
    """
    simulation = Simulation(random_setup(rng, **fixed))
    scheduler = simulation.scheduler
    coming = [random_request(rng, f"r{index}") for index in range(num_requests)]
    steps = 0
    while coming or scheduler.has_unfinished_requests():
        while coming and rng.random() < 0.5:
            simulation.add(coming.pop(0))
        _abort_some(rng, simulation, faults)
        broken = [f"image-{number}" for number in range(5) if rng.random() < faults]
        if ahead:
            simulation.step_ahead(
                lambda: _abort_some(rng, simulation, faults), fails=lambda _: rng.random() < faults / 4, broken=broken
            )
        else:
            runnable = scheduler.has_unfinished_requests()
            batch = simulation.schedule()
            assert batch.chunks or not runnable, "a step without progress while work is runnable"
            _abort_some(rng, simulation, faults)  # between `schedule` and `update`
            result = simulation.worker.execute(batch, fails=lambda _: rng.random() < faults / 4, broken=broken)
            simulation.update(batch, result)
        steps += 1
        assert steps < 5_000, "the simulation does not end"
    simulation.check_end()
    return simulation


def _abort_some(rng: Random, simulation: Simulation, rate: float) -> None:
    if simulation.scheduler.requests and rng.random() < rate:
        name = rng.choice(list(simulation.scheduler.requests))
        simulation.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        simulation.check_integrity()
