"""Encoder cache bookkeeping, and the plan of which encoders run."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.encoder_plan import EncoderPlanner
from corellm.scheduling.request import Request
from tests.scheduling.fake_worker import make_feature, make_request


def test_unreferenced_entries_are_evicted_oldest_first_and_only_for_room() -> None:
    """A released item stays until room is needed; what the worker must drop is said once."""
    cache = EncoderCache(10)
    for number, name in enumerate("abc"):
        cache.allocate(name, 3, "r", number)
    for index in (1, 0, 2):
        cache.release("r", index)
    assert cache.take_freed() == []
    cache.allocate("d", 4, "s", 0)
    assert cache.take_freed() == ["b"]
    assert cache.take_freed() == []
    assert "a" in cache
    assert "b" not in cache
    cache.check_integrity()


def test_a_reference_keeps_an_entry_and_each_placeholder_is_its_own_reference() -> None:
    """An item used twice by a request and once by another stays until all three placeholders are done."""
    cache = EncoderCache(4)
    cache.allocate("a", 4, "r", 0)
    assert cache.acquire("a", "r", 1)
    assert cache.acquire("a", "s", 0)
    cache.release_all("r")
    assert not cache.can_allocate(1)
    assert cache.is_referenced("a")
    cache.release("s", 0)
    assert cache.can_allocate(4)
    assert not cache.is_referenced("a")
    assert not cache.acquire("b", "s", 0)
    cache.check_integrity()


def test_discard_forgets_only_what_nobody_references() -> None:
    """An item that failed for one request is kept if another already uses it, so it must exist."""
    cache = EncoderCache(4)
    cache.allocate("a", 2, "r", 0)
    cache.allocate("b", 2, "r", 1)
    cache.release("r", 1)
    for name in ("a", "b", "unknown"):
        cache.discard(name)
    assert "a" in cache
    assert cache.take_freed() == ["b"]


@given(st.randoms(use_true_random=False), st.integers(1, 80))
def test_any_operations_keep_the_books_in_order(rng: Random, num_operations: int) -> None:
    """Random allocations, acquisitions and releases agree with a plain model of who holds what."""
    cache, holders, worker = EncoderCache(8), dict[tuple[str, int], str](), set[str]()
    for number in range(num_operations):
        name, holder = f"item{rng.randint(0, 5)}", (f"r{rng.randint(0, 3)}", number)
        size = 1 + int(name[-1]) % 3
        if rng.random() < 0.6:
            if not cache.acquire(name, *holder):
                if not cache.can_allocate(size):
                    continue
                cache.allocate(name, size, *holder)
                worker -= set(cache.take_freed())
                worker.add(name)
            holders[holder] = name
        elif holders:
            key = rng.choice(list(holders))
            cache.release(*key)
            del holders[key]
        cache.check_integrity()
        worker -= set(cache.take_freed())
        assert set(holders.values()) <= worker
        assert worker == {f"item{index}" for index in range(6) if f"item{index}" in cache}
        sizes = {held: 1 + int(held[-1]) % 3 for held in holders.values()}
        assert cache.referenced_embeds == sum(sizes.values()) <= 8


def plan(encoders: EncoderPlanner, request: Request, start: int, num_tokens: int) -> tuple[int, list[int]]:
    """How many tokens can run, and the items that they take embeddings of."""
    can_run, items = encoders.plan(request, start, num_tokens)
    return can_run, [item.index for item in items]


def planner(capacity: int) -> tuple[EncoderPlanner, EncoderCache]:
    """A planner at the beginning of a step."""
    cache = EncoderCache(capacity)
    encoders = EncoderPlanner(cache)
    encoders.begin_step()
    return encoders, cache


def test_an_item_is_planned_when_a_chunk_first_touches_an_embedding_of_it() -> None:
    """Text before it, and a placeholder token that takes no embedding, need no encoder."""
    encoders, _ = planner(10)
    request = make_request("r", [1] * 12, [make_feature("a", 4, 4, [False, True, True, False])])
    assert plan(encoders, request, 0, 4) == (4, [])
    assert plan(encoders, request, 0, 5) == (5, [])
    assert plan(encoders, request, 0, 6) == (6, [0])
    assert plan(encoders, request, 6, 1) == (1, [0])
    assert plan(encoders, request, 7, 5) == (5, [])
    assert plan(encoders, request, 8, 4) == (4, [])


def test_room_is_not_made_at_the_expense_of_the_same_chunk() -> None:
    """The item that is cached stays, although it was used before the other one: a step's budget does not hold both."""
    cache = EncoderCache(8, 4)
    encoders = EncoderPlanner(cache)
    for name in ("old", "newer"):
        cache.allocate(name, 4, name, 0)
        cache.release(name, 0)
    encoders.begin_step()
    request = make_request("r", [1] * 12, [make_feature("new", 0, 4), make_feature("old", 6, 4)])
    num_tokens, items = encoders.plan(request, 0, 12)
    assert num_tokens == 12
    assert encoders.commit(request, items) == [("r", 0)]
    assert cache.take_freed() == ["newer"]


def test_a_chunk_ends_before_the_item_that_does_not_fit() -> None:
    """Two items of 4 in a cache of 6: the chunk stops before the second, and inside of it nothing can run."""
    encoders, cache = planner(6)
    request = make_request("r", [1] * 20, [make_feature("a", 2, 4), make_feature("b", 8, 4)])
    num_tokens, items = encoders.plan(request, 0, 20)
    assert (num_tokens, [item.index for item in items]) == (8, [0])
    assert encoders.commit(request, items) == [("r", 0)]
    assert plan(encoders, request, 2, 4) == (4, [0])  # held already
    assert encoders.commit(request, items) == []
    assert plan(encoders, request, 9, 11) == (0, [])
    for computed, referenced in ((5, 4), (6, 0)):
        request.num_computed_tokens = computed
        encoders.release_computed(request)
        assert cache.referenced_embeds == referenced
    # The cache has room again, but the step's encoder budget has 2 left.
    assert plan(encoders, request, 8, 12) == (0, [])
    encoders.begin_step()
    assert plan(encoders, request, 8, 12) == (12, [1])


def test_one_identifier_is_encoded_once_for_all() -> None:
    """Twice in a request, and again in another: one encoder run, one entry, three references."""
    encoders, cache = planner(4)
    twice = make_request("r", [1] * 12, [make_feature("a", 0, 4), make_feature("a", 6, 4)])
    once = make_request("s", [1] * 8, [make_feature("a", 2, 4)])
    num_tokens, items = encoders.plan(twice, 0, 12)
    assert (num_tokens, [item.index for item in items]) == (12, [0, 1])
    assert encoders.commit(twice, items) == [("r", 0)]
    num_tokens, items = encoders.plan(once, 0, 8)
    assert (num_tokens, [item.index for item in items]) == (8, [0])
    assert encoders.commit(once, items) == []
    assert sorted(cache.held("r")) == [0, 1]
    assert sorted(cache.held("s")) == [0]


def test_a_cached_item_that_the_plan_needs_is_not_counted_as_room() -> None:
    """An unreferenced cached item could be evicted, unless the same chunk needs it beside a new one."""
    encoders, cache = planner(6)
    cache.allocate("a", 4, "finished", 0)
    cache.release_all("finished")
    needs_both = make_request("r", [1] * 12, [make_feature("a", 0, 4), make_feature("b", 5, 3)])
    assert plan(encoders, needs_both, 0, 12) == (5, [0])
    needs_other = make_request("s", [1] * 12, [make_feature("b", 5, 3)])
    assert plan(encoders, needs_other, 0, 12) == (12, [0])
