"""The processor cache: a budget never exceeded, the oldest out first, and each key computed by one thread at a time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm.multimodal.cache import ProcessorCache

WAIT_S = 120.0

KEYS = st.sampled_from("abcdef")
OPERATIONS = st.lists(
    st.tuples(st.just("get"), KEYS)
    | st.tuples(st.just("put"), KEYS, st.integers(0, 12))
    | st.tuples(st.just("compute"), KEYS, st.integers(0, 12))
    | st.tuples(st.just("clear")),
    max_size=40,
)


@given(budget=st.integers(0, 20), operations=OPERATIONS)
def test_any_sequence_of_operations_against_a_model(budget: int, operations: list[tuple[Any, ...]]) -> None:
    """Contents, order, size and counters agree with a model that evicts by recomputing everything."""
    cache = ProcessorCache(budget)
    model: OrderedDict[str, tuple[int, int]] = OrderedDict()
    hits = misses = 0

    def put(key: str, value: int, nbytes: int) -> None:
        model.pop(key, None)
        if 0 < budget >= nbytes:
            model[key] = (value, nbytes)
            while sum(size for _, size in model.values()) > budget:
                model.popitem(last=False)

    for value, (name, *args) in enumerate(operations):
        if name == "clear":
            cache.clear()
            model.clear()
            continue
        key = args[0]
        if name == "put":
            cache.put(key, value, args[1])
            put(key, value, args[1])
            continue
        found = model.get(key)
        hits, misses = hits + (found is not None), misses + (found is None)
        if found is not None:
            model.move_to_end(key)
        if name == "get":
            assert cache.get(key) == (None if found is None else found[0])
        else:
            assert cache.get_or_compute(key, lambda new=value, size=args[1]: (new, size)) == (found or (value,))[0]
            if found is None:
                put(key, value, args[1])
        assert cache.nbytes == sum(size for _, size in model.values()) <= budget
        assert len(cache) == len(model)
        assert [key in cache for key in "abcdef"] == [key in model for key in "abcdef"]
        assert (cache.hits, cache.misses) == (hits, misses)


def test_looking_whether_a_key_is_there_does_not_make_it_younger() -> None:
    """`in` is for tests and metrics; `get` is use."""
    cache = ProcessorCache(2)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    assert "a" in cache
    cache.put("c", 3, 1)
    assert ("a" in cache, "b" in cache) == (False, True)
    cache.get("b")
    cache.put("d", 4, 1)
    assert ("b" in cache, "c" in cache) == (True, False)


def test_what_is_larger_than_the_budget_is_not_stored_and_evicts_nothing() -> None:
    """Except an earlier value of the same key, which is not true any more."""
    cache = ProcessorCache(10)
    cache.put("a", 1, 5)
    cache.put("b", 2, 5)
    cache.put("big", 3, 11)
    cache.put("b", 4, 11)
    assert (cache.get("a"), cache.get("b"), cache.get("big"), cache.nbytes) == (1, None, None, 5)
    assert cache.get_or_compute("big", lambda: (3, 11)) == 3
    assert "big" not in cache


def test_none_is_a_value() -> None:
    """Computed once, like any other."""
    cache = ProcessorCache(10)
    calls: list[int] = []
    for _ in range(2):
        assert cache.get_or_compute("k", lambda: (calls.append(1), 1)) is None
    assert len(calls) == 1


def test_no_budget_no_cache() -> None:
    """0 stores nothing, not even what has no size."""
    cache = ProcessorCache(0)
    cache.put("a", 1, 0)
    assert [cache.get_or_compute("a", lambda: (2, 0)) for _ in range(2)] == [2, 2]
    assert (len(cache), cache.hits, cache.misses) == (0, 0, 2)


@pytest.mark.parametrize("make", [lambda: ProcessorCache(-1), lambda: ProcessorCache(1).put("a", 1, -1)])
def test_negative_sizes_are_refused(make: Callable[[], Any]) -> None:
    """They would let the cache grow beyond its budget."""
    with pytest.raises(ValueError, match="0 or more"):
        make()


class Gate:
    """A computation that tells when it has begun, and ends when it is let."""

    def __init__(self, outcome: Any = "value") -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.outcome = outcome

    def __call__(self) -> tuple[Any, int]:
        """Wait at the gate, then return or raise."""
        self.begun.set()
        assert self.open.wait(WAIT_S)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome, 1


def waiting(cache: ProcessorCache, key: str, threads: int) -> None:
    """Wait until that many threads wait for `key`: there is no event for it, so look at what they wait on."""
    deadline = time.monotonic() + WAIT_S
    _, landed = cache._in_progress[key]
    while len(landed._condition._waiters) < threads:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_that_want_one_key_compute_it_once() -> None:
    """The others get that very value, also where it is too large to be stored; other keys do not wait."""
    for budget in (10, 1):
        cache, gate, value = ProcessorCache(budget), Gate(), object()
        gate.outcome = value
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(cache.get_or_compute, "k", lambda g=gate: (g()[0], 5))
            assert gate.begun.wait(WAIT_S)
            others = [pool.submit(cache.get_or_compute, "k", pytest.fail) for _ in range(5)]
            waiting(cache, "k", 5)
            assert cache.get_or_compute("other", lambda: (7, 1)) == 7
            gate.open.set()
            assert all(future.result(WAIT_S) is value for future in [first, *others])
        assert ("k" in cache) == (budget == 10)
        assert (cache.hits, cache.misses) == (5, 2)


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_error_is_its_callers_alone(error: BaseException) -> None:
    """Three threads that wait for a failing one succeed: one tries for itself, two get its value; nothing is left."""
    cache, gate = ProcessorCache(10), Gate(error)
    calls: list[int] = []

    def healthy() -> tuple[str, int]:
        calls.append(1)
        return "fine", 1

    caught: list[BaseException] = []

    def failing() -> None:
        try:
            cache.get_or_compute("k", gate)
        except BaseException as raised:
            caught.append(raised)

    thread = threading.Thread(target=failing)
    thread.start()
    assert gate.begun.wait(WAIT_S)
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(cache.get_or_compute, "k", healthy) for _ in range(3)]
        waiting(cache, "k", 3)
        gate.open.set()
        assert [future.result(WAIT_S) for future in others] == ["fine"] * 3
    thread.join(WAIT_S)
    assert caught == [error]
    assert len(calls) == 1
    assert not cache._in_progress


def test_errors_are_not_remembered() -> None:
    """The next call computes again."""
    cache = ProcessorCache(10)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_compute("k", lambda: (1 // 0, 1))
    with pytest.raises(ValueError, match="nbytes"):
        cache.get_or_compute("k", lambda: (1, -1))
    assert cache.get_or_compute("k", lambda: (5, 1)) == 5


def test_waiting_has_a_deadline() -> None:
    """A caller that has waited long enough for a thread that hangs computes the value itself."""
    cache, gate = ProcessorCache(10, patience=0.05), Gate("late")
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(cache.get_or_compute, "k", gate)
        assert gate.begun.wait(WAIT_S)
        assert cache.get_or_compute("k", lambda: ("own", 1)) == "own"
        gate.open.set()
        assert hanging.result(WAIT_S) == "late"
    assert cache.get("k") == "late"


def test_a_computation_that_asks_for_itself_is_an_error_not_a_deadlock() -> None:
    """And leaves the key free."""
    cache = ProcessorCache(10)
    with pytest.raises(RuntimeError, match="'k'"):
        cache.get_or_compute("k", lambda: (cache.get_or_compute("k", lambda: (1, 1)), 1))
    assert cache.get_or_compute("k", lambda: (2, 1)) == 2


def test_many_threads_never_exceed_the_budget_nor_mix_up_keys() -> None:
    """A storm of lookups of more keys than fit; every value belongs to its key."""
    cache = ProcessorCache(50)

    def storm(seed: int) -> int:
        highest = 0
        for i in range(400):
            key = str((i * seed + i // 7) % 23)
            assert cache.get_or_compute(key, lambda key=key: (f"value of {key}", 5)) == f"value of {key}"
            highest = max(highest, cache.nbytes)
        return highest

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(storm, range(1, 9))) <= 50
    assert cache.nbytes == 5 * len(cache) <= 50
    assert cache.hits + cache.misses == 8 * 400
