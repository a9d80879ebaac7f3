"""Whose function a thread calls next."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from corellm.errors import ProcessingError
from corellm.frontend.preparation_pools import PreparationPools


def test_owners_take_turns() -> None:
    """One with many functions keeps no other waiting for all of them; each one's are called in their order."""
    pools, gate, called = PreparationPools(), threading.Event(), list[str]()
    futures = [pools.submit(gate.wait, takes_long=False, owner="a")]
    for owner, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            word = f"{owner}{number}"
            futures.append(pools.submit(lambda word=word: called.append(word), takes_long=False, owner=owner))  # type: ignore[misc]
    gate.set()
    wait(futures, 30)
    assert [word for word in called if word[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert called.index("b0") <= 2
    assert called.index("c0") <= 2
    assert called.index("b1") < called.index("a2")
    pools.close()


def test_closed_pools_call_nothing_more() -> None:
    """What waits is cancelled, what is cancelled is not called, and an error is its caller's."""
    pools, gate, called = PreparationPools(), threading.Event(), list[str]()
    begun = threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait()
        raise ValueError("mine")

    held = pools.submit(hold, takes_long=False)
    left = pools.submit(lambda: called.append("left"), takes_long=False)
    waiting = pools.submit(lambda: called.append("waiting"), takes_long=False, owner="b")
    assert begun.wait(600)
    assert left.cancel()
    pools.close()
    gate.set()
    with pytest.raises(ValueError, match="mine"):
        held.result(600)
    with pytest.raises(CancelledError):
        waiting.result(600)
    with pytest.raises(RuntimeError):
        pools.submit(lambda: None, takes_long=False)
    assert called == []


def test_a_panic_of_a_library_is_its_requests_error() -> None:
    """One of a library in Rust is no `Exception`; the thread goes on with the next request."""

    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic("index out of bounds")

    pools = PreparationPools()
    with pytest.raises(ProcessingError, match="Panic"):
        pools.submit(panic, takes_long=False).result(600)
    assert pools.submit(lambda: "next", takes_long=False).result(600) == "next"
    pools.close()
