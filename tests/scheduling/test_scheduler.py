"""Each thing the scheduler promises, one by one, on a simulation that checks everything else beside it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from corellm.errors import InvalidParameterError, MultiModalError, PromptError, PromptTooLongError
from corellm.scheduling.batch import ScheduledBatch
from corellm.scheduling.request import Request, RequestStatus
from tests.scheduling.fake_worker import VOCABULARY, make_feature, make_request
from tests.scheduling.simulation import Setup, Simulation


def simulate(**setup: Any) -> Simulation:
    """A simulation of the given sizes."""
    return Simulation(Setup(**setup))


def text(name: str, length: int, max_tokens: int = 4, **options: Any) -> Request:
    """A prompt without items that shares no prefix with other names and runs to `max_tokens`."""
    start = sum(name.encode()) * 7
    prompt = [1 + (start + position) % (VOCABULARY - 1) for position in range(length)]
    return make_request(name, prompt, max_tokens=max_tokens, ignore_eos=True, **options)


def shape(batch: ScheduledBatch) -> list[tuple[str, int, int]]:
    """`(request, start, tokens)` of every chunk."""
    return [(chunk.request_id, chunk.start, chunk.num_tokens) for chunk in batch.chunks]


def test_decision_making_imports_no_torch() -> None:
    """The scheduler and all it decides with load neither torch nor transformers nor numpy."""
    code = (
        "import corellm.scheduling.scheduler, sys\n"
        "print(*[name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Admission ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "length", "items", "error", "words"),
    [
        ({"max_model_len": 20}, 20, [], PromptTooLongError, ["20 tokens", "max_model_len=20", "shorten"]),
        ({"num_blocks": 4}, 12, [], PromptTooLongError, ["12 tokens", "cache of 12", "num_kv_blocks"]),
        ({}, 0, [], PromptError, ["no tokens"]),
        ({"encoder_capacity": 5}, 10, [6], MultiModalError, ["image 0", "6 embeddings", "holds 5"]),
        ({"chunked": False, "max_num_batched_tokens": 9}, 10, [], PromptTooLongError, ["10 tokens", "tokens=9"]),
        ({"chunked": False, "encoder_capacity": 5}, 10, [3, 3], PromptTooLongError, ["6 embeddings", "holds 5"]),
    ],
)
def test_what_can_never_fit_is_refused_at_once(
    setup: dict[str, Any], length: int, items: list[int], error: type[Exception], words: list[str]
) -> None:
    """The refusal has the right type, names both numbers and the way out, and queues nothing."""
    simulation = simulate(**setup)
    offsets = [sum(items[:index]) for index in range(len(items))]
    features = [
        make_feature(f"i{index}", offset, size, item=index)
        for index, (offset, size) in enumerate(zip(offsets, items, strict=True))
    ]
    request = make_request("big", [1] * length, features)
    assert not simulation.scheduler.add_request(request)
    assert request.status is RequestStatus.FINISHED_IGNORED
    assert request.finish_reason == "ignored"
    assert type(request.error) is error
    assert all(word in str(request.error) for word in words)
    assert not simulation.scheduler.has_unfinished_requests()


@pytest.mark.parametrize(
    ("setup", "length", "items"),
    [
        ({"max_model_len": 20}, 19, []),
        ({"num_blocks": 4}, 11, []),
        ({"encoder_capacity": 6}, 10, ["a"]),
        ({"chunked": False, "max_num_batched_tokens": 10}, 10, []),
        ({"chunked": False, "encoder_capacity": 6}, 12, ["a", "a"]),  # one item twice is encoded once
        ({"encoder_capacity": 6}, 12, ["a", "b"]),
    ],
)
def test_what_just_fits_runs(setup: dict[str, Any], length: int, items: list[str]) -> None:
    """One less than refused is served to its end: the length that the model or the cache allows."""
    simulation = simulate(**setup)
    features = [make_feature(name, 6 * index, 6, item=index) for index, name in enumerate(items)]
    request = make_request("r", [1] * length, features, max_tokens=None, ignore_eos=True)
    simulation.add(request)
    simulation.run()
    assert request.status is RequestStatus.FINISHED_LENGTH
    assert request.num_tokens == simulation.scheduler.limits.max_total_tokens


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    """Two unfinished requests never share an id; once one ended, even in mid-step, its id is free."""
    simulation = simulate()
    simulation.add(text("a", 5))
    with pytest.raises(InvalidParameterError, match="'a' is in use"):
        simulation.scheduler.add_request(text("a", 5))
    batch = simulation.schedule()
    simulation.scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    again = text("a", 5)
    simulation.add(again)
    simulation.update(batch, simulation.worker.execute(batch))
    assert again.num_computed_tokens == 0
    assert again.output_token_ids == []
    simulation.run()
    assert again.status is RequestStatus.FINISHED_LENGTH


# Chunked prefill ------------------------------------------------------------------------------------------------------


def test_one_budget_for_all_decodes_first_then_older_prefills() -> None:
    """A long prompt is cut to what decodes leave; the rest of the budget goes to the next in line."""
    simulation = simulate(max_num_batched_tokens=8)
    simulation.add(text("a", 3, 9))
    assert shape(simulation.step()) == [("a", 0, 3)]
    simulation.add(text("long", 10), text("b", 6))
    assert shape(simulation.step()) == [("a", 3, 1), ("long", 0, 7)]
    batch = simulation.step()
    assert shape(batch) == [("a", 4, 1), ("long", 7, 3), ("b", 0, 4)]
    assert [chunk.samples for chunk in batch.chunks] == [True, True, False]
    assert shape(simulation.step()) == [("a", 5, 1), ("long", 10, 1), ("b", 4, 2)]
    simulation.run()


def test_no_more_sequences_than_allowed() -> None:
    """The next request starts in the step after one ended."""
    simulation = simulate(max_num_seqs=2)
    simulation.add(text("a", 3, 2), text("b", 3, 3), text("c", 3, 2))
    assert [len(batch.chunks) for batch in simulation.run()] == [2, 2, 2, 1]


def test_priority_orders_waiting_requests_and_fcfs_ignores_it() -> None:
    """Lower numbers first, ties by arrival; first come first served looks at arrival only."""
    for policy, order in (("priority", ["c", "a", "b"]), ("fcfs", ["a", "b", "c"])):
        simulation = simulate(max_num_seqs=1, policy=policy)
        simulation.add(text("a", 3, 1, priority=1), text("b", 3, 1, priority=1), text("c", 3, 1, priority=0))
        assert [batch.chunks[0].request_id for batch in simulation.run()] == order


def test_new_and_gone_tell_the_worker_what_to_hold() -> None:
    """A request is new once, with its stop tokens, and released in the batch after its end."""
    simulation = simulate()
    simulation.add(make_request("a", [1, 2], max_tokens=2, ignore_eos=True, stop_token_ids=[99]))
    first = simulation.step()
    assert [sequence.request_id for sequence in first.new] == ["a"]
    assert first.new[0].stop_token_ids == {99}
    second = simulation.step()
    assert not second.new
    assert not second.released
    assert simulation.schedule().released == ["a"]


# Without chunked prefill ----------------------------------------------------------------------------------------------


def test_whole_prompts_first_as_long_as_some_wait() -> None:
    """Prompts are never cut; several share a step; decodes go on only when no prompt waits."""
    simulation = simulate(chunked=False, max_num_batched_tokens=10)
    simulation.add(text("a", 4), text("b", 5), text("c", 7))
    assert shape(simulation.step()) == [("a", 0, 4), ("b", 0, 5)]
    assert shape(simulation.step()) == [("c", 0, 7)]
    assert shape(simulation.step()) == [("a", 4, 1), ("b", 5, 1), ("c", 7, 1)]
    simulation.add(text("d", 3))
    assert shape(simulation.step()) == [("d", 0, 3)]
    simulation.run()


def test_a_recomputed_sequence_longer_than_a_step_is_computed_in_several() -> None:
    """Without chunked prefill a preempted sequence may have outgrown the budget; it comes back all the same."""
    simulation = simulate(chunked=False, max_num_batched_tokens=6, num_blocks=9, block_size=4, prefix_caching=False)
    requests = [text(name, 6, 18) for name in "ab"]
    simulation.add(*requests)
    batches = simulation.run()
    assert requests[1].num_preemptions == 1
    assert [request.num_preemptions for request in requests] == [0, 1]
    assert any(chunk.num_tokens == 6 and not chunk.samples for batch in batches for chunk in batch.chunks)


# Prefix caching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [True, False])
def test_many_questions_about_one_image_compute_it_once(chunked: bool) -> None:
    """64 questions: one encoder run, and the shared prefix is prefilled by the first alone."""
    simulation = simulate(num_blocks=600, max_num_batched_tokens=64, max_num_seqs=64, chunked=chunked)
    prefix = [5] * 2 + [3] * 30 + [6] * 8
    requests = [
        make_request(f"q{number}", [*prefix, 1 + number % 30, 1 + number // 30], [make_feature("cat", 2, 30)])
        for number in range(64)
    ]
    simulation.add(*requests)
    simulation.run()
    assert simulation.worker.num_encoder_runs == 1
    assert [request.num_cached_tokens for request in requests] == [0] + [40] * 63


def test_who_waits_for_a_prefix_is_passed_over_but_keeps_its_place() -> None:
    """While a prefix is being computed its second user waits, others go past, and it starts as soon as it can."""
    simulation = simulate(max_num_batched_tokens=12)
    leader, follower = (
        make_request(name, [9] * 16 + [number]) for number, name in enumerate(["leader", "follower"], 1)
    )
    simulation.add(leader, follower, text("other", 3))
    assert shape(simulation.step()) == [("leader", 0, 12)]
    assert shape(simulation.step()) == [("leader", 12, 5), ("other", 0, 3)]
    assert ("follower", 16, 1) in shape(simulation.step())
    simulation.run()


def test_a_block_that_is_only_half_computed_in_this_step_is_worth_waiting_for() -> None:
    """Where the encoder budget cuts the leader's chunk within a block, the follower does not compute that block too."""
    simulation = simulate(block_size=8, encoder_capacity=6)
    prompt, features = [1] * 20, [make_feature("a", 0, 6), make_feature("b", 6, 6)]
    simulation.add(*(make_request(name, prompt, features, max_tokens=1) for name in ("leader", "follower")))
    assert shape(simulation.step()) == [("leader", 0, 6)]
    assert shape(simulation.step()) == [("leader", 6, 14)]
    assert shape(simulation.step()) == [("follower", 16, 4)]


@pytest.mark.parametrize("fault", ["fails", "abort"])
def test_who_waits_for_a_prefix_that_never_comes_computes_it(fault: str) -> None:
    """If the leader fails or is aborted, nothing of its unfinished step is reused, and the follower takes over."""
    simulation = simulate(max_num_batched_tokens=30)
    leader, follower = (
        make_request(name, [9] * 16 + [number]) for number, name in enumerate(["leader", "follower"], 1)
    )
    simulation.add(leader, follower)
    batch = simulation.schedule()
    assert shape(batch) == [("leader", 0, 17)]
    if fault == "abort":
        simulation.scheduler.finish_requests(["leader"], RequestStatus.FINISHED_ABORTED)
    changed = simulation.update(batch, simulation.worker.execute(batch, fails=lambda name: fault == "fails"))
    assert changed == ([leader] if fault == "fails" else [])
    assert shape(simulation.step()) == [("follower", 0, 17)]
    simulation.run()


def test_a_salt_keeps_tenants_apart() -> None:
    """Equal prompts under different salts share nothing, under the same salt they share."""
    simulation = simulate()
    requests = [make_request(f"r{index}", [9] * 9, cache_salt=salt) for index, salt in enumerate(["x", "y", "x"])]
    for request in requests:
        simulation.add(request)
        simulation.run()
    assert [request.num_cached_tokens for request in requests] == [0, 0, 8]


# Encoders -------------------------------------------------------------------------------------------------------------


def test_an_encoder_runs_with_the_chunk_that_first_touches_its_item() -> None:
    """Not before, and the chunk ends before an item whose output does not fit beside what is in use."""
    simulation = simulate(max_num_batched_tokens=8, encoder_capacity=6)
    features = [make_feature("a", 9, 4), make_feature("b", 14, 4)]
    simulation.add(make_request("r", [1] * 20, features, max_tokens=1))
    steps = [(batch.chunks[0].num_tokens, batch.encode) for batch in simulation.run()]
    assert steps == [(8, []), (6, [("r", 0)]), (6, [("r", 1)])]


def test_a_finished_placeholder_gives_its_room_back() -> None:
    """Once computed an item is evictable: the next one takes its place and the worker is told."""
    simulation = simulate(encoder_capacity=4)
    simulation.add(make_request("r", [1] * 10, [make_feature("a", 0, 4), make_feature("b", 5, 4)], max_tokens=1))
    assert [(shape(batch)[0][1:], batch.freed_items) for batch in simulation.run()] == [((0, 5), []), ((5, 5), ["a"])]


def test_an_item_cached_by_prefix_runs_no_encoder() -> None:
    """Nothing is encoded for a placeholder whose KV is found, even after its embeddings are evicted."""
    simulation = simulate(encoder_capacity=4)
    for name, image in (("r1", "a"), ("r2", "b"), ("r3", "a")):
        simulation.add(make_request(name, [1] * 4 + [2] * 5, [make_feature(image, 0, 4)]))
        simulation.run()
    assert simulation.worker.num_encoder_runs == 2


def test_more_is_kept_than_a_step_encodes() -> None:
    """Two items of 4 go into steps of 4, one after the other; later both are there for questions about their ends."""
    simulation = simulate(encoder_capacity=8, encoder_step=4)
    for name, image in (("r1", "a"), ("r2", "b")):
        simulation.add(make_request(name, [1] * 6 + [2] * 3, [make_feature(image, 1, 4)], max_tokens=1))
    assert [batch.encode for batch in simulation.run()] == [[("r1", 0)], [("r2", 0)]]
    for name, image in (("r3", "a"), ("r4", "b")):
        simulation.add(make_request(name, [1] * 6 + [3] * 3, [make_feature(image, 1, 4)], max_tokens=1))
    assert [(len(batch.chunks), batch.encode) for batch in simulation.run()] == [(2, [])]


def test_a_failed_encoder_fails_all_who_share_it_and_nobody_else() -> None:
    """Both users of a broken item fail with the error; a third request and a later retry are fine."""
    simulation = simulate(prefix_caching=False)
    pair = [make_request(f"r{index}", [index] + [1] * 6, [make_feature("a", 1, 4)]) for index in (1, 2)]
    simulation.add(*pair, text("other", 5))
    batch = simulation.step(broken=["a"])
    assert len(batch.encode) == 1
    assert [request.status for request in pair] == [RequestStatus.FINISHED_ERROR] * 2
    assert all(request.finish_reason == "error" and request.error is not None for request in pair)
    retry = make_request("retry", [1] * 7, [make_feature("a", 1, 4)])
    simulation.add(retry)
    simulation.run()
    assert retry.finish_reason in ("stop", "length")


# Preemption -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_newest_gives_way_and_comes_back(preemption: str, chunked: bool) -> None:
    """Out of blocks, the newest is preempted and later ends as if nothing had been; the older ones never wait."""
    simulation = simulate(
        num_blocks=9, block_size=4, num_host_blocks=20, preemption=preemption, chunked=chunked, prefix_caching=False
    )
    requests = [text(name, 6, 10) for name in "abc"]
    simulation.add(*requests)
    batches = simulation.run()
    assert requests[0].num_preemptions == requests[1].num_preemptions == 0
    assert requests[2].num_preemptions == 1
    swapped = [(batch.swap_out, batch.swap_in) for batch in batches if batch.swap_out or batch.swap_in]
    assert bool(swapped) == (preemption == "swap")
    if swapped:
        (out, _), (_, back) = swapped
        assert [host for _, host in out] == [host for host, _ in back]
    back_again = [batch for batch in batches for sequence in batch.new if sequence.request_id == "c"]
    assert len(back_again) == 2


def test_swap_falls_back_to_recompute_without_room_on_the_host() -> None:
    """A host of one block takes no request, and every request finishes all the same."""
    simulation = simulate(num_blocks=9, block_size=4, num_host_blocks=1, preemption="swap")
    simulation.add(*(text(name, 6, 10) for name in "abc"))
    assert not any(batch.swap_out for batch in simulation.run())
    assert simulation.scheduler.get_stats().num_preemptions >= 1


def test_the_least_urgent_gives_way() -> None:
    """Under the priority policy the newest may stay while an older, less urgent request is preempted."""
    simulation = simulate(num_blocks=9, block_size=4, policy="priority")
    requests = [text(name, 6, 10, priority=priority) for name, priority in (("a", 5), ("b", 1), ("c", 1))]
    simulation.add(*requests)
    simulation.run()
    assert [request.num_preemptions for request in requests] == [1, 0, 0]


def test_nobody_is_admitted_beside_a_swapped_request() -> None:
    """A newcomer waits until the preempted requests (`c`, soon `b` too) are back, however little it needs."""
    simulation = simulate(num_blocks=9, block_size=4, num_host_blocks=20, preemption="swap")
    simulation.add(*(text(name, 6, 12) for name in "abc"))
    while not simulation.scheduler.num_swapped:
        simulation.step()
    simulation.add(text("late", 1, 1))
    back_first: list[str] = []
    while simulation.scheduler.has_unfinished_requests():
        back_first += [sequence.request_id for sequence in simulation.step().new]
    assert back_first == ["b", "c", "late"]
    simulation.check_end()


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_request_preempted_in_the_middle_of_an_item_lets_go_of_it(preemption: str) -> None:
    """Preempted between two chunks of an image it references nothing, and finds the image again while there is room."""
    simulation = simulate(
        num_blocks=12,
        block_size=2,
        num_host_blocks=20,
        preemption=preemption,
        max_num_batched_tokens=4,
        encoder_capacity=8,
        prefix_caching=False,
    )
    older = text("a", 3, 12)
    newer = make_request("b", [1] * 16, [make_feature("cat", 4, 8)], max_tokens=2, ignore_eos=True)
    simulation.add(older, newer)
    while not newer.num_preemptions:
        before = newer.num_computed_tokens
        simulation.step()
    assert 4 < before < 12
    assert not simulation.encoder_cache.held("b")
    assert "cat" in simulation.encoder_cache
    simulation.run()
    assert simulation.worker.num_encoder_runs == 1


# The end of a request -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["waiting", "prefilling", "scheduled", "decoding", "swapped", "preempted"])
def test_abort_at_any_moment_gives_everything_back(moment: str) -> None:
    """An aborted request gets no more tokens, the other one is not disturbed, and no block or reference is left."""
    mode = "swap" if moment == "swapped" else "recompute"
    simulation = simulate(
        num_blocks=8, block_size=4, num_host_blocks=9, preemption=mode, max_num_batched_tokens=10, prefix_caching=False
    )
    other = text("a", 5, 18)
    victim = make_request("b", [1] * 12, [make_feature("cat", 2, 6)], max_tokens=9, ignore_eos=True)
    simulation.add(other, victim)
    in_flight: ScheduledBatch | None = None
    if moment == "scheduled":
        in_flight = simulation.schedule()
    elif moment in ("prefilling", "decoding"):
        while victim.num_computed_tokens < (1 if moment == "prefilling" else 13):
            simulation.step()
    elif moment in ("swapped", "preempted"):
        while not victim.num_preemptions:
            simulation.step()
    got = len(victim.output_token_ids)
    assert simulation.scheduler.finish_requests(["b", "b", "?"], RequestStatus.FINISHED_ABORTED) == [victim]
    assert simulation.scheduler.finish_requests(["b"], RequestStatus.FINISHED_ABORTED) == []
    if in_flight is not None:
        assert victim not in simulation.update(in_flight, simulation.worker.execute(in_flight))
    simulation.run()
    assert victim.finish_reason == "abort"
    assert len(victim.output_token_ids) == got
    assert other.finish_reason == "length"


def test_a_failed_request_leaves_the_others_alone() -> None:
    """A request that fails in the worker ends with its error and is reported; the batch's others advance."""
    simulation = simulate()
    bad, good = text("bad", 6), text("good", 6)
    simulation.add(bad, good)
    batch = simulation.schedule()
    changed = simulation.update(batch, simulation.worker.execute(batch, fails=lambda name: name == "bad"))
    assert changed == [bad, good]
    assert bad.finish_reason == "error"
    assert str(bad.error) == "injected"
    assert len(good.output_token_ids) == 1
    simulation.run()


def test_finish_by_a_stop_string() -> None:
    """The output processor ends a request between steps; it counts as stopped and the worker releases it."""
    simulation = simulate()
    request = text("a", 5, 20)
    simulation.add(request)
    simulation.step()
    simulation.scheduler.finish_requests(["a"], RequestStatus.FINISHED_STOPPED)
    assert request.finish_reason == "stop"
    assert not simulation.scheduler.has_unfinished_requests()
    assert simulation.step().released == ["a"]
    assert not simulation.worker.sequences


def test_stats_count_everybody() -> None:
    """Running, waiting and the share of blocks in use, as they are."""
    simulation = simulate(num_blocks=11, max_num_seqs=1, block_size=4)
    simulation.add(text("a", 8), text("b", 8))
    simulation.step()
    stats = simulation.scheduler.get_stats()
    assert (stats.num_running, stats.num_waiting, stats.num_swapped, stats.num_preemptions) == (1, 1, 0, 0)
    assert stats.kv_cache_usage == pytest.approx(0.2)
    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (1, 1)
