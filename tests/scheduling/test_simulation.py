"""Random load on tiny caches: every request finishes, with the output it has alone, and no block is lost.

`Simulation` checks every step: budgets, integrity of blocks and encoder cache, progress, and (through `FakeWorker`)
that each sequence reads exactly its own history. At the end: outputs equal to running alone, all blocks free, and no
more than eight preemptions per request.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corellm.scheduling.request import RequestStatus
from tests.scheduling.fake_worker import VOCABULARY, make_request
from tests.scheduling.simulation import Setup, Simulation, run_random


@pytest.mark.parametrize(
    "block_of_seeds", [*range(4), *(pytest.param(block, marks=pytest.mark.full) for block in range(4, 10))]
)
def test_random_load_on_tiny_caches(block_of_seeds: int) -> None:
    """A thousand, here by the hundred, random engines and loads, a third of them with random aborts and failures."""
    for seed in range(100 * block_of_seeds, 100 * block_of_seeds + 100):
        rng = Random(seed)
        run_random(rng, num_requests=rng.randint(1, 14), faults=rng.choice([0.0, 0.0, 0.05]))


@pytest.mark.parametrize("block_of_seeds", range(2))
def test_random_load_with_steps_ahead(block_of_seeds: int) -> None:
    """The same with every step followed by the next before its tokens are known, wherever that is possible."""
    num_ahead = 0
    for seed in range(100 * block_of_seeds, 100 * block_of_seeds + 100):
        rng = Random(seed)
        faults = rng.choice([0.0, 0.0, 0.05])
        num_ahead += run_random(rng, num_requests=rng.randint(1, 14), faults=faults, ahead=True).num_ahead
    assert num_ahead > 500


def test_drafts_save_steps_and_change_no_token() -> None:
    """Right ones give several tokens in a step; wrong ones leave nothing behind, whatever the load is."""
    steps = {}
    for drafts in (False, True):
        simulation = Simulation(Setup(drafts=drafts, window=3))
        simulation.add(*(make_request(f"r{i}", [1, 2, i], max_tokens=40, ignore_eos=True) for i in range(4)))
        steps[drafts] = len(simulation.run())  # which compares the tokens
    assert steps[True] < 0.6 * steps[False]
    assert simulation.worker.num_right_drafts > 40


@pytest.mark.parametrize("budget", [64, 2])
def test_drafts_take_what_is_left(budget: int) -> None:
    """Neither the last free block nor the last token of the budget, where a decode of lower rank needs it."""
    simulation = Simulation(Setup(block_size=4, num_blocks=6, prefix_caching=False))
    first, second = (
        make_request(name, [1] * count, max_tokens=9, ignore_eos=True) for name, count in (("a", 6), ("b", 7))
    )
    simulation.add(first, second)
    simulation.step()
    simulation.step()
    simulation.scheduler.max_num_batched_tokens = budget
    first.draft_token_ids = [1, 2, 3]  # the third would lie in the block that the second needs now
    batch = simulation.step()
    assert [(chunk.request_id, chunk.num_drafts) for chunk in batch.chunks] == [("a", 0), ("b", 0)]
    assert simulation.scheduler.get_stats().num_preemptions == 0


def test_drafts_hold_up_no_span() -> None:
    """A span longer than the budget that is left begins as it does beside a plain decode."""
    simulation = Simulation(Setup(max_num_batched_tokens=8))
    drafting = make_request("a", [1, 2], max_tokens=20, ignore_eos=True)
    simulation.add(drafting)
    simulation.step()
    drafting.draft_token_ids = [1, 2]
    simulation.add(make_request("b", [3] * 12, spans=[(0, 12)], max_tokens=1))
    batch = simulation.step()
    assert [(chunk.request_id, chunk.num_tokens) for chunk in batch.chunks] == [("a", 1), ("b", 12)]


@pytest.mark.parametrize("window", [1, 2, 5, 12])
def test_random_load_on_few_places_of_windows(window: int) -> None:
    """Layers with a window have a fraction of the blocks: as many as windows and a step need, and never too few."""
    fewest = 1.0
    for seed in range(40):
        rng = Random(seed)
        simulation = run_random(
            rng,
            num_requests=rng.randint(5, 20),
            faults=rng.choice([0.0, 0.05]),
            ahead=rng.random() < 0.5,
            window=window,
            num_blocks=rng.choice([60, 200, 400]),
            max_num_seqs=rng.randint(1, 3),
            max_num_batched_tokens=rng.choice([3, 8]),
            encoder_capacity=12,
            encoder_step=None,
            max_model_len=80,
        )
        (windows,) = simulation.blocks._users
        assert windows is not None
        fewest = min(fewest, windows.num_places / simulation.setup.num_blocks)
    assert fewest < 0.2, "these loads are meant to be short of places"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False), st.integers(1, 8), st.sampled_from([0.0, 0.1]), st.booleans())
def test_any_load_ends(rng: Random, num_requests: int, faults: float, ahead: bool) -> None:
    """The same, drawn by hypothesis, so that a failure is shrunk."""
    run_random(rng, num_requests=num_requests, faults=faults, ahead=ahead)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("chunked", [True, False])
def test_pressure_preempts_often_but_nobody_too_often(
    preemption: Literal["recompute", "swap"], policy: Literal["fcfs", "priority"], chunked: bool
) -> None:
    """Sixteen growing sequences in room for a few, sixty in all: many preemptions, at most eight for any one."""
    total = 0
    for seed in range(2):
        rng = Random(seed)
        setup = Setup(
            block_size=rng.choice([1, 4]),
            num_blocks=rng.choice([70, 120]),
            num_host_blocks=rng.choice([50, 500]),
            max_model_len=64,
            max_num_batched_tokens=128,
            max_num_seqs=16,
            chunked=chunked,
            policy=policy,
            preemption=preemption,
            prefix_caching=bool(seed),
        )
        simulation = Simulation(setup)
        for index in range(60):
            prompt = [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 20))]
            request = make_request(
                f"r{index}", prompt, max_tokens=rng.choice([30, None]), ignore_eos=True, priority=rng.randint(0, 3)
            )
            simulation.add(request)
            simulation.step()
        simulation.run()
        total += simulation.scheduler.get_stats().num_preemptions
    assert total > 20, "this load is meant to preempt"


def test_bursts_of_urgent_requests_stop_preempting_the_same_victim() -> None:
    """A humble request that is admitted between bursts, and preempted by each, runs through after a while.

    A burst comes whenever it runs, for ever: without the bound on preemptions it would never end.
    """
    setup = Setup(block_size=1, num_blocks=41, max_model_len=30, policy="priority", max_num_seqs=6)
    simulation, rng = Simulation(setup), Random(0)
    humble = make_request("humble", [1] * 8, max_tokens=None, ignore_eos=True, priority=9)
    simulation.add(humble)
    for step in range(2_000):
        if humble.status is RequestStatus.RUNNING and simulation.scheduler.num_waiting == 0:
            for member in range(3):
                prompt = [rng.randrange(1, VOCABULARY) for _ in range(4)]
                simulation.add(make_request(f"u{step}-{member}", prompt, max_tokens=20, ignore_eos=True))
        if humble.status.is_finished:
            break
        simulation.step()
    assert humble.finish_reason == "length"
    assert humble.num_preemptions > 2, "these bursts are meant to preempt"
    simulation.run()
