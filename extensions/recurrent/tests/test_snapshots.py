"""Snapshots in the prefix cache: where they are kept and found, and that no sequence goes on from what is not its own.

The worker of the simulation keeps, beside the keys and values of `tests.scheduling.fake_worker`, in which call of a
module each was computed: what is shared must have been computed in the calls that the sequence alone would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

import pytest

from corellm.scheduling.batch import ScheduledBatch, SequenceChunk, StepResult
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.request import Request, RequestStatus
from corellm_recurrent.segments import calls
from corellm_recurrent.snapshots import Snapshot, Snapshots
from tests.scheduling.fake_worker import FakeWorker, make_feature, make_request
from tests.scheduling.simulation import Setup, Simulation, random_request, random_setup

Call = tuple[int, int]


class Worker(FakeWorker):
    """Also computes states: each is known by the KV of its last token and by the calls that led there."""

    def __init__(self, *args: Any, segment: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._segment = segment
        self._snapshots: dict[int, tuple[int, list[Call]]] = {}
        self._calls: dict[str, list[Call]] = {}
        """By sequence: of its state, with those before the snapshot that it began from."""
        self._made: dict[int, Call] = {}
        """By slot: the call that made its KV."""
        self._made_on_host: dict[int, list[Call | None]] = {}
        self.is_cut = set[str]()
        """Sequences of which a segment was cut, for want of room for its items."""
        self.num_restored = 0

    def execute(
        self, batch: ScheduledBatch, fails: Callable[[str], bool] = lambda _: False, broken: Collection[str] = ()
    ) -> StepResult:
        for request_id in batch.released:
            if request_id not in batch.swapped:
                self._calls.pop(request_id, None)
                self.is_cut.discard(request_id)
        return super().execute(batch, fails, broken)

    def _copy_blocks(self, batch: ScheduledBatch) -> None:
        for device, host in batch.swap_out:
            self._made_on_host[host] = [self._made.get(slot) for slot in self._slots(device)]
        super()._copy_blocks(batch)
        for host, device in batch.swap_in:
            for slot, call in zip(self._slots(device), self._made_on_host[host], strict=True):
                if call is not None:
                    self._made[slot] = call

    def _compute(self, chunk: SequenceChunk, result: StepResult, sampled: Sequence[int] = ()) -> None:
        super()._compute(chunk, result, sampled)
        sequence, stop = self.sequences[chunk.request_id], chunk.start + chunk.num_tokens
        prompt_len, history = len(sequence.prompt_token_ids), self._histories[chunk.request_id]
        notes = {note.num_tokens: note.row for note in chunk.notes}
        if chunk.start in notes:
            kv, made = self._snapshots[notes[chunk.start]]
            assert kv == history[chunk.start - 1], f"{chunk.request_id} goes on from the state of another prompt"
            self._calls[chunk.request_id], self.num_restored = list(made), self.num_restored + 1
        done = self._calls.setdefault(chunk.request_id, [])
        done[:] = [call for call in done if call[1] <= chunk.start]  # drafts that were wrong
        assert sum(end - start for start, end in done) == chunk.start, f"{chunk.request_id}: no state of {chunk.start}"
        if stop < prompt_len and stop % self._segment:
            self.is_cut.add(chunk.request_id)
        for start, end in calls(chunk.start, stop, prompt_len, self._segment):
            done.append((start, end))
            for position in range(start, end):
                self._made[self._slot(chunk, position)] = start, end
            if end in notes:
                self._snapshots[notes[end]] = history[end - 1], list(done)
        if chunk.request_id in self.is_cut:
            return
        alone = list(calls(0, stop, prompt_len, self._segment))
        assert done == alone, f"{chunk.request_id}: its state was computed in other calls than alone"
        for call in alone:
            for position in range(*call):
                made = self._made[self._slot(chunk, position)]
                assert made == call, f"{chunk.request_id}: the KV of {position} was computed in other calls than alone"


class States(Simulation):
    """With snapshots; `num_snapshots` at most."""

    def __init__(self, setup: Setup, segment: int = 4, num_snapshots: int = 3) -> None:
        self._segment, self._num_snapshots = segment, num_snapshots if setup.prefix_caching else 0
        super().__init__(setup)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.worker: Worker = Worker(
            self.setup.block_size,
            self.setup.encoder_capacity,
            self.encoder_cache.step_embeds,
            segment=self._segment,
            drafts=self.setup.drafts,
        )

    def make_users(self, pool: Any) -> list[Any]:
        self.snapshots = Snapshots(pool, self.setup.block_size, self._segment, self._num_snapshots)
        return [self.snapshots]

    def check_budget(self, batch: ScheduledBatch) -> None:
        """The only chunk of a prompt may exceed it, to the end of a segment."""
        over = batch.num_tokens - self.setup.max_num_batched_tokens
        assert over <= 0 or (over < self._segment and batch.chunks[-1].num_tokens > over), "token budget exceeded"

    def check_end(self) -> None:
        super().check_end()
        assert not self.snapshots._coming

    def ask(self, prompt: Sequence[int], **options: Any) -> Request:
        """Run one request to its end."""
        request = make_request(f"r{len(self.requests)}", prompt, **{"max_tokens": 3, "ignore_eos": True, **options})
        self.add(request)
        self.run()
        return request


def test_a_prompt_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the block manager has found is not looked for again, which would cost as much for each that waits."""
    states, looked_up = States(Setup(num_blocks=40)), list[bytes]()
    prompt, find = range(100), BlockPool.find

    def counted(pool: BlockPool, of: bytes) -> int | None:
        looked_up.append(of)
        return find(pool, of)

    states.ask(prompt)
    monkeypatch.setattr(BlockPool, "find", counted)
    request = states.ask(prompt)
    assert states.worker.num_restored == 1
    assert len(looked_up) <= len(request.block_hashes) + 2


def test_random_load_on_tiny_caches() -> None:
    """Of all, with both preemptions, drafts, aborts and failures: every sequence has its own state."""
    restored = cut = 0
    for seed in range(150):
        rng = Random(seed)
        setup = random_setup(rng, window=None)
        simulation = States(setup, rng.choice([2, 4, 6]), rng.randint(1, 4))
        coming = [_without_spans(random_request(rng, f"r{index}")) for index in range(rng.randint(1, 14))]
        faults, steps = rng.choice([0.0, 0.0, 0.05]), 0
        while coming or simulation.scheduler.has_unfinished_requests():
            while coming and rng.random() < 0.5:
                simulation.add(coming.pop(0))
            runnable = simulation.scheduler.has_unfinished_requests()
            batch = simulation.schedule()
            assert batch.chunks or not runnable, "a step without progress while work is runnable"
            if runnable and rng.random() < faults:
                name = rng.choice(list(simulation.scheduler.requests))
                simulation.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            cut += bool(simulation.worker.is_cut)
            result = simulation.worker.execute(batch, fails=lambda _, rng=rng, faults=faults: rng.random() < faults / 4)
            simulation.update(batch, result)
            steps += 1
            assert steps < 5_000, "the simulation does not end"
        simulation.check_end()
        restored += simulation.worker.num_restored
    assert restored > 50
    assert cut > 10


def _without_spans(request: Request) -> Request:
    plain = make_request(request.request_id, request.prompt_token_ids, request.features, priority=request.priority)
    plain.sampling_params, plain.max_output_tokens = request.sampling_params, request.max_output_tokens
    plain.needs_every_row, plain.stop_token_ids = request.needs_every_row, request.stop_token_ids
    return plain


def test_a_conversation_goes_on_from_the_end_of_its_last_prompt() -> None:
    """Up to the last border in it: what was generated was computed token by token, and is computed again."""
    simulation = States(Setup(block_size=2))
    first = simulation.ask(range(1, 12))
    turn = [*first.prompt_token_ids, *first.output_token_ids, 30, 31, 32]
    second = simulation.ask(turn)
    third = simulation.ask([*turn, *second.output_token_ids, 33])
    assert [request.num_cached_tokens for request in (first, second, third)] == [0, 8, 16]


def test_a_common_beginning_is_kept_once_two_requests_parted_there() -> None:
    """The second finds its blocks but no state; the third, and the whole rest of a batch, find both."""
    simulation = States(Setup(block_size=2))
    shared = list(range(1, 11))
    cached = [simulation.ask([*shared, *[20 + i] * 6]).num_cached_tokens for i in range(4)]
    assert cached == [0, 0, 8, 8]
    simulation = States(Setup(block_size=2))
    together = [make_request(f"r{i}", [*shared, *[20 + i] * 6], max_tokens=2) for i in range(6)]
    simulation.add(*together)
    simulation.run()
    assert [request.num_cached_tokens for request in together] == [0, 0, 8, 8, 8, 8]


def test_short_prompts_wait_for_no_one() -> None:
    """Where no border is shared, equal beginnings hold up nothing."""
    simulation = States(Setup(block_size=2))
    simulation.add(*(make_request(f"r{i}", [1, 2, 3, 9], max_tokens=2) for i in range(6)))
    assert len(simulation.step().chunks) == 6
    simulation.run()


def test_equal_prompts_share_one_snapshot() -> None:
    """As with `n` completions: all but the first wait until it is there."""
    simulation = States(Setup(block_size=2, max_num_batched_tokens=4))
    simulation.add(*(make_request(f"r{i}", range(1, 14), max_tokens=2) for i in range(4)))
    simulation.run()
    assert [request.num_cached_tokens for request in simulation.requests] == [0, 12, 12, 12]
    assert simulation.snapshots.num_kept == 1


def test_the_least_recently_used_snapshot_goes_first() -> None:
    """And sooner one whose blocks are gone."""
    simulation = States(Setup(block_size=2), num_snapshots=2)
    a, b, c = ([number] * 6 for number in (1, 2, 3))
    assert [simulation.ask(prompt).num_cached_tokens for prompt in (a, b, a, c, a, b)] == [0, 0, 4, 0, 4, 0]
    simulation = States(Setup(block_size=2, num_blocks=10), num_snapshots=2)
    simulation.ask(a)
    simulation.ask(b)
    simulation.ask(a)
    simulation.ask([7] * 15, max_tokens=1)  # evicts the blocks of both, and leaves a third snapshot
    assert simulation.ask(a).num_cached_tokens == 0


@pytest.mark.parametrize("forget", [lambda blocks: blocks.reset_prefix_cache(), lambda blocks: blocks.free_all()])
def test_snapshots_go_with_the_prefix_cache(forget: Callable[[Any], Any]) -> None:
    """When it is reset, as new weights want; and after an interrupt, as what a step wrote is not known then."""
    simulation = States(Setup(block_size=2))
    simulation.ask(range(1, 12))
    assert simulation.snapshots.num_kept == 1
    forget(simulation.blocks)
    assert simulation.snapshots.num_kept == 0
    assert simulation.ask(range(1, 12)).num_cached_tokens == 0
    assert simulation.ask(range(1, 12)).num_cached_tokens == 8


def test_a_preempted_request_goes_on_from_a_snapshot() -> None:
    """Recomputed as far as the last border of its prompt."""
    simulation = States(Setup(block_size=2, num_blocks=21))
    simulation.add(*(make_request(f"r{i}", [i] * 13, max_tokens=12, ignore_eos=True) for i in (1, 2)))
    simulation.run()
    assert simulation.scheduler.get_stats().num_preemptions
    assert simulation.worker.num_restored


def test_no_snapshot_is_taken_from_who_reads_or_writes_it() -> None:
    """With one row, which is being read, none is left; what would have been one is found missing, and nothing else."""
    simulation = States(Setup(block_size=2), num_snapshots=1)
    shared = [5] * 9
    simulation.ask(shared)
    simulation.add(*(make_request(f"r{i}", [*shared, *[i] * 9], max_tokens=2) for i in (11, 12)))
    batch = simulation.schedule()
    assert [note for chunk in batch.chunks for note in chunk.notes] == [Snapshot(8, 0)] * 2
    simulation.update(batch, simulation.worker.execute(batch))
    simulation.run()
    assert simulation.ask(shared).num_cached_tokens == 8


def test_items_that_do_not_fit_together_wait_for_no_one_who_came_later() -> None:
    """Two in one segment, of more embeddings than the encoder cache holds, while others come again and again."""
    simulation = States(Setup(block_size=2, encoder_capacity=6, num_blocks=200))
    simulation.add(make_request("before", [9] * 5, max_tokens=6, ignore_eos=True))
    simulation.step()
    items = [make_feature("a", 2, 5), make_feature("b", 7, 5, item=1)]
    request = make_request("items", [1, 2, *[0] * 10, 3, 4], items, max_tokens=2, ignore_eos=True)
    simulation.add(request)
    for number in range(20):
        simulation.add(make_request(f"r{number}", [number] * 5, max_tokens=6, ignore_eos=True))
        simulation.step()
    assert request.status.is_finished
    simulation.run()


def test_other_salts_find_nothing() -> None:
    """A snapshot is found by the hash of a block, which covers the salt."""
    simulation = States(Setup(block_size=2))
    simulation.ask(range(1, 12), cache_salt="one")
    assert simulation.ask(range(1, 12), cache_salt="two").num_cached_tokens == 0
    assert simulation.ask(range(1, 12), cache_salt="one").num_cached_tokens == 8


@pytest.mark.parametrize(
    ("tokens", "segment", "wanted"),
    [
        ((0, 10), 0, [(0, 10)]),
        ((0, 7), 4, [(0, 4), (4, 7)]),
        ((4, 12), 4, [(4, 8), (8, 9), (9, 10), (10, 11), (11, 12)]),
        ((6, 9), 4, [(6, 8), (8, 9)]),
        ((9, 11), 4, [(9, 10), (10, 11)]),
    ],
)
def test_calls_end_with_segments_and_with_the_prompt(tokens: Call, segment: int, wanted: list[Call]) -> None:
    """Of a prompt of nine tokens; those behind it are one call each."""
    assert list(calls(*tokens, 9, segment)) == wanted


def test_calls_end_where_a_snapshot_is_left() -> None:
    """Also where a chunk would be one call."""
    assert list(calls(4, 12, 9, 0, borders=(4, 8, 12))) == [(4, 8), (8, 12)]
