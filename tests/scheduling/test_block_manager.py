"""The block manager, with `check_integrity` and an independent model of what every slot holds as oracles."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.request import Request
from tests.scheduling.fake_worker import embedding_at, make_feature, make_request, next_kv


def manager(num_blocks: int = 11, block_size: int = 4, *, caching: bool = True, host: int = 0) -> BlockManager:
    """Ten blocks of four tokens unless told otherwise."""
    return BlockManager(num_blocks, block_size, enable_prefix_caching=caching, num_host_blocks=host)


def compute(blocks: BlockManager, request: Request) -> bool:
    """Admit a request and compute all of it, as the scheduler would."""
    cached = blocks.get_computed_blocks(request)
    start = len(cached) * blocks.block_size
    if not blocks.allocate(request, request.num_tokens - start, cached):
        return False
    request.num_computed_tokens = request.num_tokens
    blocks.mark_computed(request)
    blocks.check_integrity()
    return True


def test_equal_prefixes_share_blocks_while_used_and_after() -> None:
    """A second request shares the full blocks of the first, during its life and after it."""
    blocks = manager()
    first, second, third = (make_request(name, [1] * 8 + [number]) for number, name in enumerate("abc"))
    assert compute(blocks, first)
    assert compute(blocks, second)
    assert blocks.block_table("a")[:2] == blocks.block_table("b")[:2]
    assert blocks.block_table("a")[2] != blocks.block_table("b")[2]
    assert blocks.num_free_blocks == 10 - 4
    assert blocks.usage == pytest.approx(0.4)
    shared = blocks.block_table("a")[:2]
    blocks.free(first)
    blocks.free(second)
    blocks.free(second)  # nothing left to give back
    assert blocks.num_free_blocks == 10
    assert blocks.get_computed_blocks(third) == shared


def test_a_sequence_that_found_a_prefix_offers_its_own_blocks_too() -> None:
    """The chain grows: first, then second on top of it, then both are found."""
    blocks = manager()
    compute(blocks, make_request("a", [1] * 5))
    compute(blocks, make_request("b", [1] * 9))
    assert blocks.get_computed_blocks(make_request("c", [1] * 9)) == blocks.block_table("b")[:2]


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (16, 3)])
def test_the_last_token_is_never_found(length: int, found: int) -> None:
    """At least one token is left to compute, even where the whole prompt is cached."""
    blocks = manager()
    compute(blocks, make_request("a", [1] * 20))
    assert len(blocks.get_computed_blocks(make_request("b", [1] * length))) == found


def test_nothing_is_found_for_others() -> None:
    """Prompt logprobs need every position; another salt or another item is another prefix; caching may be off."""
    blocks, plain = manager(), manager(caching=False)
    cat = [make_feature("cat", 0, 4)]
    compute(blocks, make_request("a", [1] * 9, cat))
    compute(plain, make_request("a", [1] * 9, cat))
    assert len(blocks.get_computed_blocks(make_request("b", [1] * 9, cat))) == 2
    assert not blocks.get_computed_blocks(make_request("c", [1] * 9, cat, prompt_logprobs=1))
    assert not blocks.get_computed_blocks(make_request("d", [1] * 9, cat, cache_salt="tenant"))
    assert not blocks.get_computed_blocks(make_request("e", [1] * 9, [make_feature("dog", 0, 4)]))
    assert not blocks.get_computed_blocks(make_request("f", [1] * 9))
    assert not plain.get_computed_blocks(make_request("g", [1] * 9, cat))


def test_only_computed_blocks_can_be_found() -> None:
    """Blocks allocated for a step that has not run, or failed, are never offered."""
    blocks = manager()
    failed = make_request("a", [1] * 12)
    assert blocks.allocate(failed, 12, blocks.get_computed_blocks(failed))
    assert not blocks.get_computed_blocks(make_request("b", [1] * 12))
    failed.num_computed_tokens = 6
    blocks.mark_computed(failed)
    assert len(blocks.get_computed_blocks(make_request("b", [1] * 12))) == 1
    blocks.free(failed)
    assert len(blocks.get_computed_blocks(make_request("b", [1] * 12))) == 1
    blocks.check_integrity()


def test_allocation_is_all_or_nothing_and_keeps_a_reserve() -> None:
    """A refused allocation changes nothing; blocks shared from the free ones count as taken; growth keeps the list."""
    blocks = manager(num_blocks=5)
    old = make_request("a", [1] * 8)
    compute(blocks, old)
    blocks.free(old)
    wide = make_request("b", [1] * 17)
    assert not blocks.allocate(wide, 17 - 8, [1, 2])
    assert blocks.num_free_blocks == 4
    blocks.check_integrity()
    narrow = make_request("c", [2] * 8)
    assert not blocks.allocate(narrow, 8, reserve=3)
    assert blocks.allocate(narrow, 8, reserve=2)
    narrow.num_computed_tokens = 8
    table = blocks.block_table("c")
    assert blocks.allocate(narrow, 1)
    assert blocks.block_table("c") is table
    assert len(table) == 3
    assert 0 not in table


def test_eviction_takes_blank_blocks_first_then_the_oldest_tail() -> None:
    """Cached prefixes outlive blank blocks, the one freed first goes first, and a sequence's tail before its head."""
    blocks = manager(num_blocks=7)
    first, second = make_request("a", [1] * 8), make_request("b", [2] * 8)
    compute(blocks, first)
    compute(blocks, second)
    blocks.free(first)
    blocks.free(second)

    def found(token: int) -> int:
        return len(blocks.get_computed_blocks(make_request("probe", [token] * 9)))

    newcomer = make_request("c", [3] * 12)
    assert blocks.allocate(newcomer, 8)
    assert (found(1), found(2)) == (2, 2)
    newcomer.num_computed_tokens = 8
    assert blocks.allocate(newcomer, 1)
    assert (found(1), found(2)) == (1, 2)
    assert blocks.allocate(newcomer, 5)
    assert (found(1), found(2)) == (0, 2)
    blocks.check_integrity()


def test_the_same_block_computed_twice_is_found_once() -> None:
    """Two requests that computed one prefix side by side keep a block each; one of them is the one to find."""
    blocks = manager()
    twins = [make_request(name, [1] * 5) for name in "ab"]
    for twin in twins:
        blocks.allocate(twin, 5)
    for twin in twins:
        twin.num_computed_tokens = 5
        blocks.mark_computed(twin)
        blocks.check_integrity()
    assert blocks.get_computed_blocks(make_request("c", [1] * 5)) == blocks.block_table("a")[:1]
    for twin in twins:
        blocks.free(twin)
    blocks.check_integrity()


def test_swap_keeps_shared_blocks_and_finds_them_again() -> None:
    """A swapped request leaves shared blocks to the others and copies back only what is not cached any more."""
    blocks = manager(host=3)
    stays, leaves = make_request("a", [1] * 8 + [2]), make_request("b", [1] * 8 + [3])
    compute(blocks, stays)
    compute(blocks, leaves)
    before = list(blocks.block_table("b"))
    out = blocks.swap_out(leaves)
    assert out is not None
    assert [device for device, _ in out] == before
    blocks.check_integrity()
    assert blocks.swap_out(stays) is None  # the host is full
    assert blocks.swap_in(leaves, reserve=7) is None
    back = blocks.swap_in(leaves)
    assert back is not None
    assert [host for host, _ in back] == [host for _, host in out[2:]]
    assert blocks.block_table("b")[:2] == before[:2]
    blocks.check_integrity()
    assert blocks.swap_out(leaves) is not None
    blocks.free(leaves)
    assert blocks.swap_out(stays) is not None
    blocks.check_integrity()


def test_swap_copies_only_what_is_computed() -> None:
    """Blocks that were allocated but not computed are not copied, and nothing at all means no swap."""
    blocks = manager(host=10)
    request = make_request("a", [1] * 12)
    blocks.allocate(request, 12)
    assert blocks.swap_out(request) is None
    request.num_computed_tokens = 5
    assert len(blocks.swap_out(request) or ()) == 2
    assert len(blocks.swap_in(request) or ()) == 2
    assert len(blocks.block_table("a")) == 3


def test_reset_forgets_prefixes_but_only_when_nobody_runs() -> None:
    """After a reset nothing is found; while a request holds blocks it is refused."""
    blocks = manager()
    request = make_request("a", [1] * 9)
    compute(blocks, request)
    assert not blocks.reset_prefix_cache()
    blocks.free(request)
    assert blocks.reset_prefix_cache()
    blocks.check_integrity()
    assert not blocks.get_computed_blocks(make_request("b", [1] * 9))


def test_check_integrity_notices() -> None:
    """The oracle of the other tests fails when a block is lost, counted wrongly, or registered one way only."""

    def broken() -> BlockManager:
        blocks = manager(host=2)
        compute(blocks, make_request("a", [1] * 9))
        return blocks

    damages: list[Callable[[BlockManager], object]] = [
        lambda blocks: blocks._pool._blank.pop(),
        lambda blocks: blocks._pool._blank.append(blocks._pool._blank[0]),
        lambda blocks: blocks._pool._blank.append(0),
        lambda blocks: blocks._tables["a"].pop(),
        lambda blocks: blocks._pool._block_of.popitem(),
        lambda blocks: blocks._pool.share(blocks._tables["a"][0]),
        lambda blocks: blocks._host_free.pop(),
    ]
    for damage in damages:
        blocks = broken()
        blocks.check_integrity()
        damage(blocks)
        with pytest.raises(AssertionError):
            blocks.check_integrity()


class SlotModel:
    """What every slot holds, written and copied only as the block manager says; reads must find one's own history."""

    def __init__(self, blocks: BlockManager) -> None:
        self.blocks = blocks
        self.device: dict[tuple[int, int], int] = {}
        self.host: dict[tuple[int, int], int] = {}

    def history(self, request: Request, stop: int) -> list[int]:
        history: list[int] = []
        for position, token in enumerate(request.token_ids(0, stop)):
            before = history[-1] if history else None
            history.append(next_kv(before, token, embedding_at(request.features, position)))
        return history

    def compute(self, request: Request, stop: int) -> None:
        """Write the slots up to `stop`, then read all from the start."""
        for position in range(request.num_computed_tokens, stop):
            self.device[self.slot(request, position)] = self.history(request, stop)[position]
        request.num_computed_tokens = stop
        self.read(request)

    def read(self, request: Request) -> None:
        for position, kv in enumerate(self.history(request, request.num_computed_tokens)):
            assert self.device.get(self.slot(request, position)) == kv, f"{request.request_id} at {position}"

    def slot(self, request: Request, position: int) -> tuple[int, int]:
        size = self.blocks.block_size
        return self.blocks.block_table(request.request_id)[position // size], position % size

    def copy_out(self, pairs: list[tuple[int, int]]) -> None:
        for device, host in pairs:
            for offset in range(self.blocks.block_size):
                self.host[host, offset] = self.device.get((device, offset), -1)

    def copy_in(self, pairs: list[tuple[int, int]]) -> None:
        for host, device in pairs:
            for offset in range(self.blocks.block_size):
                self.device[device, offset] = self.host[host, offset]


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.booleans())
def test_any_operations_keep_every_sequence_its_own_history(rng: Random, num_operations: int, caching: bool) -> None:
    """After any operations no block is lost, and each sequence, wherever it was moved, reads what it wrote."""
    blocks = manager(rng.randint(4, 16), rng.choice([1, 2, 4]), caching=caching, host=rng.choice([0, 3, 20]))
    model = SlotModel(blocks)
    running, swapped = list[Request](), list[Request]()
    for number in range(num_operations):
        action = rng.choice(["add", "add", "grow", "grow", "free", "fail", "out", "in"])
        if action == "add":
            prompt = [rng.choice([1, 2])] * rng.randint(1, 10) + [3] * rng.randint(0, 3)
            items = [make_feature(rng.choice(["cat", "dog"]), 0, 1)] if rng.random() < 0.5 else []
            request = make_request(str(number), prompt, items)
            cached = blocks.get_computed_blocks(request)
            start = len(cached) * blocks.block_size
            if blocks.allocate(request, len(prompt) - start, cached):
                request.num_computed_tokens = start
                model.read(request)
                model.compute(request, rng.randint(start, len(prompt)))
                blocks.mark_computed(request)
                running.append(request)
        elif action == "in" and swapped:
            request = rng.choice(swapped)
            back = blocks.swap_in(request)
            if back is not None:
                model.copy_in(back)
                model.read(request)
                swapped.remove(request)
                running.append(request)
        elif action in ("grow", "out", "free", "fail") and running:
            request = rng.choice(running)
            if action == "grow":
                if request.num_computed_tokens == request.num_tokens:
                    request.append_token(rng.choice([1, 2]))
                if blocks.allocate(request, request.num_tokens - request.num_computed_tokens):
                    model.compute(request, request.num_tokens)
                    blocks.mark_computed(request)
            elif action == "out":
                pairs = blocks.swap_out(request)
                if pairs is not None:
                    model.copy_out(pairs)
                    running.remove(request)
                    swapped.append(request)
            else:
                if action == "fail":  # leaves garbage where it had not computed yet
                    table = blocks.block_table(request.request_id)
                    for position in range(request.num_computed_tokens, len(table) * blocks.block_size):
                        model.device[model.slot(request, position)] = -1
                blocks.free(request)
                running.remove(request)
        blocks.check_integrity()
    for request in running:
        model.read(request)
    for request in running + swapped:
        blocks.free(request)
    blocks.check_integrity()
    assert blocks.num_free_blocks == blocks.capacity
