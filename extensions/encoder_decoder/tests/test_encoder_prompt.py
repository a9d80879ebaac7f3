"""The engine's bookkeeping for encoder-decoders: blocks of states, chunks, items, limits; no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm.config import SchedulerConfig
from corellm.errors import PromptTooLongError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import ScheduledBatch, StepResult
from corellm.scheduling.block_hash import extend_block_hashes
from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.request import Request, RequestStatus
from corellm.scheduling.scheduler import Scheduler
from corellm_encoder_decoder.encoder_prompt import EncoderPrompt, StateBlocks
from tests.scheduling.fake_worker import make_feature

BLOCK = 4


def make_request(
    name: str,
    encoder: Sequence[int],
    decoder: Sequence[int] = (1, 2),
    features: Sequence[MultiModalFeature] = (),
    *,
    num_states: int | None = None,
    cache_salt: str | None = None,
    max_tokens: int = 6,
) -> Request:
    """A request whose encoder reads `encoder`."""
    count = len(encoder) if num_states is None else num_states
    return Request(
        name,
        list(decoder),
        SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        features,
        cache_salt=cache_salt,
        part=EncoderPrompt.of(encoder, count, features, cache_salt),
    )


def make_scheduler(
    num_blocks: int = 21, *, caching: bool = True, host: int = 0, budget: int = 64, **config: Any
) -> Scheduler:
    """Blocks of four tokens; eight embeddings of items a step."""
    return Scheduler(
        replace(SchedulerConfig(), **config),
        BlockManager(
            num_blocks,
            BLOCK,
            enable_prefix_caching=caching,
            num_host_blocks=host,
            make_users=lambda pool: [StateBlocks(pool, BLOCK, enable_caching=caching)],
        ),
        EncoderCache(16, 8),
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
    )


def test_states_count_against_the_budget_of_a_step() -> None:
    """Whisper's encoder makes 1500 states of a prompt of few tokens: two of them would not fit one step's memory."""
    scheduler = make_scheduler(budget=16)
    for name in ("first", "second"):
        scheduler.add_request(make_request(name, [5, len(name)], num_states=12))
    assert [chunk.request_id for chunk in scheduler.schedule().chunks] == ["first"]


class Worker:
    """Knows, for each block, whose states were written into it; checks that chunks attend to their own."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.digests = {
            request.request_id: request.part.digest for request in requests if isinstance(request.part, EncoderPrompt)
        }
        self.written: dict[int, tuple[bytes, int]] = {}
        self.host: dict[int, tuple[bytes, int] | None] = {}
        self.encoded: list[str] = []

    def run(self, scheduler: Scheduler, batch: ScheduledBatch) -> None:
        for device, host in batch.swap_out:
            self.host[host] = self.written.get(device)
        for host, device in batch.swap_in:
            moved = self.host[host]
            self.written.pop(device, None)
            if moved is not None:
                self.written[device] = moved
        for chunk in batch.chunks:
            for block in chunk.block_table[chunk.start // BLOCK : -(-(chunk.start + chunk.num_tokens) // BLOCK)]:
                self.written.pop(block, None)  # the decoder's own
        for chunk in batch.chunks:
            assert len(chunk.notes) == (chunk.request_id in self.digests)
            for states in chunk.notes:
                table, digest = states.block_table, self.digests[chunk.request_id]
                assert len(table) == -(-states.num_states // BLOCK)
                if states.encodes:
                    self.encoded.append(chunk.request_id)
                    self.written |= {block: (digest, index) for index, block in enumerate(table)}
                assert [self.written.get(block) for block in table] == [(digest, index) for index in range(len(table))]
        scheduler.update(batch, StepResult(sampled={c.request_id: [7] for c in batch.chunks if c.samples}))
        scheduler.blocks.check_integrity()
        scheduler.encoder_cache.check_integrity()


def run_all(scheduler: Scheduler, requests: Sequence[Request], steps: int = 400) -> Worker:
    """Run requests to their end."""
    worker = Worker(requests)
    for request in requests:
        assert scheduler.add_request(request), request.error
    while scheduler.has_unfinished_requests():
        steps -= 1
        assert steps, "no progress"
        worker.run(scheduler, scheduler.schedule())
    assert scheduler.blocks.num_free_blocks == scheduler.blocks.capacity
    return worker


def test_states_have_blocks_of_their_own_until_the_end() -> None:
    """Nine states take three blocks beside the sequence's one; all are given back."""
    scheduler = make_scheduler()
    request = make_request("a", range(9))
    worker = Worker([request])
    scheduler.add_request(request)
    batch = scheduler.schedule()
    (chunk,) = batch.chunks
    assert (chunk.num_tokens, [note.encodes for note in chunk.notes]) == (2, [True])
    assert batch.new[0].part == {"encoder_prompt": range(9)}
    assert scheduler.blocks.num_free_blocks == 20 - 4
    worker.run(scheduler, batch)
    (chunk,) = scheduler.schedule().chunks
    assert [note.encodes for note in chunk.notes] == [False]
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    assert scheduler.blocks.num_free_blocks == 20
    scheduler.blocks.check_integrity()


def test_equal_prompts_share_their_states() -> None:
    """Together, the second waits a step and shares; later, the states are still there; another salt has its own."""
    scheduler = make_scheduler(40)
    first, twin = make_request("a", range(9)), make_request("b", range(9))
    worker = run_all(scheduler, [first, twin])
    assert worker.encoded == ["a"]
    assert (first.num_cached_tokens, twin.num_cached_tokens) == (0, 9)
    others = [make_request("c", range(9)), make_request("d", range(9), cache_salt="x"), make_request("e", range(10))]
    worker.digests |= {r.request_id: r.part.digest for r in others if isinstance(r.part, EncoderPrompt)}
    for request in others:
        scheduler.add_request(request)
    while scheduler.has_unfinished_requests():
        worker.run(scheduler, scheduler.schedule())
    assert worker.encoded == ["a", "d", "e"]


def test_without_caching_nothing_is_shared() -> None:
    """Each request encodes for itself."""
    assert run_all(make_scheduler(40, caching=False), [make_request(n, range(9)) for n in "ab"]).encoded == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [
        make_request("b", range(8)),
        make_request("b", range(9), features=[make_feature("dog", 0, 4)]),
        make_request("b", range(9), features=[make_feature("cat", 1, 4)]),
        make_request("b", range(9), features=[make_feature("cat", 0, 4)], num_states=4),
        make_request("b", range(9), features=[make_feature("cat", 0, 4)], cache_salt="x"),
    ],
)
def test_the_decoders_blocks_depend_on_the_encoders_prompt(other: Request) -> None:
    """Equal decoder tokens behind another prompt, item, place or salt have other hashes; equal ones the same."""
    cat = [make_feature("cat", 0, 4)]
    one, same = (make_request(name, range(9), features=cat) for name in "ac")
    for request in (one, same, other):
        request.prompt_token_ids[:] = [1] * 8
        extend_block_hashes(request, BLOCK, 2)
    assert one.block_hashes == same.block_hashes
    assert not set(one.block_hashes) & set(other.block_hashes)


def test_the_first_chunk_takes_all_items() -> None:
    """Whatever the decoder's chunk: the encoder reads all items at once, within one step's budget of embeddings."""
    scheduler = make_scheduler(budget=1)
    features = [make_feature("cat", 0, 3), make_feature("dog", 4, 5)]
    request = make_request("a", range(10), features=features)
    scheduler.add_request(request)
    batch = scheduler.schedule()
    (chunk,) = batch.chunks
    assert (chunk.num_tokens, [item.index for item in chunk.items], batch.encode) == (1, [0, 1], [("a", 0), ("a", 1)])
    scheduler.update(batch, StepResult())
    assert scheduler.encoder_cache.usage == 0
    (chunk,) = scheduler.schedule().chunks
    assert not chunk.items


def test_encoders_count_against_a_steps_budget() -> None:
    """Twelve tokens a step: one prompt of nine at a time, and one that is longer than all alone."""
    scheduler = make_scheduler(60, budget=12)
    requests = [make_request(name, [i] * length) for i, (name, length) in enumerate({"a": 9, "b": 9, "c": 30}.items())]
    worker = Worker(requests)
    for request in requests:
        scheduler.add_request(request)
    for encoded in (["a"], ["a", "b"], ["a", "b", "c"]):
        worker.run(scheduler, scheduler.schedule())
        assert worker.encoded == encoded


def test_what_can_never_fit_is_refused() -> None:
    """States that leave no room for the decoder, and items that no step encodes together; both with their numbers."""
    scheduler = make_scheduler(6)
    long, crowded = (
        make_request("a", range(18)),
        make_request("b", range(12), features=[make_feature("x", 0, 5), make_feature("y", 5, 4)]),
    )
    for request, words in ((long, "18 tokens, from which .* KV cache of 20"), (crowded, "9 embeddings .* holds 8")):
        assert not scheduler.add_request(request)
        assert isinstance(request.error, PromptTooLongError)
        assert __import__("re").search(words, str(request.error))
    fits = make_request("c", range(12), max_tokens=50)
    assert scheduler.add_request(fits)
    assert fits.max_output_tokens == 20 - 12 - 2


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 14), st.integers(0, 2), st.integers(1, 5), st.integers(1, 14)), min_size=1, max_size=7
    ),
    mode=st.sampled_from(["recompute", "swap"]),
    caching=st.booleans(),
    blocks=st.integers(9, 16),
    budget=st.sampled_from([1, 3, 16, 64]),
)
def test_any_load_ends_and_attends_to_its_own_states(
    prompts: list[tuple[int, int, int, int]], mode: str, caching: bool, blocks: int, budget: int
) -> None:
    """With few blocks, preempted either way, every chunk finds its states, and every request its length."""
    requests = [
        make_request(str(i), [kind] * length, [9] * start, max_tokens=output)
        for i, (length, kind, start, output) in enumerate(prompts)
    ]
    scheduler = make_scheduler(blocks, caching=caching, host=12, budget=budget, preemption_mode=mode)
    run_all(scheduler, requests)
    assert all(len(r.output_token_ids) == r.max_output_tokens for r in requests)
