"""Requests with the same beginning or item go to the same engine, none to one that has more than its part."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from corellm_server.routing import LOAD_FACTOR, choose, preferences, routing_key

NAMES = ["a", "b", "c", "d"]


def test_equal_beginnings_and_items_have_one_key() -> None:
    """A conversation that goes on keeps its key; another item, another salt or another beginning has its own."""
    beginning = list(range(100))
    key = routing_key(beginning, None)
    assert key == routing_key([*beginning, 7, 8], None)
    assert key == routing_key([*beginning[:64], 9], None)
    image = routing_key(beginning, "image")
    assert image == routing_key([5], "image")
    others = [routing_key([5], None), routing_key([5], "another"), routing_key([5], "image", "salt"), key, image]
    assert len({*others, routing_key(beginning, None, "salt"), routing_key(b"5", None)}) == 7


def test_tokens_and_salts_do_not_run_into_each_other() -> None:
    """Parts of a key have borders: no two requests that share nothing have one by accident."""
    assert routing_key([1, 23], None) != routing_key([12, 3], None)
    assert routing_key(b"b", None, "a") != routing_key(b"", None, "ab")
    assert routing_key(b"", None, "") != routing_key(b"", None)
    assert routing_key([], None, "\ud800") != routing_key([], None)


def test_an_engine_that_leaves_moves_its_own_keys_only() -> None:
    """What the others had stays with them, and what it had is shared among all of them."""
    keys = [random.Random(seed).randbytes(16) for seed in range(1000)]
    before = {key: preferences(key, NAMES)[0] for key in keys}
    after = {key: preferences(key, NAMES[:3])[0] for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "d")
    moved = Counter(after[key] for key in keys if before[key] == "d")
    assert all(40 < moved[name] < 130 for name in NAMES[:3])
    assert all(190 < count < 310 for count in Counter(before.values()).values())


def test_an_idle_engine_gets_what_is_its_own() -> None:
    """Without load, each request goes to the first of its preferences."""
    for seed in range(100):
        key = random.Random(seed).randbytes(16)
        assert choose(key, dict.fromkeys(NAMES, 0)) == preferences(key, NAMES)[0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.binary(min_size=1, max_size=32))
def test_no_engine_gets_more_than_its_part(loads: list[int], key: bytes) -> None:
    """Whatever the loads are, there is an engine, and it had less than the bound; those preferred to it had more."""
    named = dict(enumerate(loads))
    chosen = choose(key, named)
    bound = LOAD_FACTOR * (sum(loads) + 1) / len(loads)
    assert loads[chosen] < bound + 1
    order = preferences(key, named)
    assert all(loads[name] >= bound for name in order[: order.index(chosen)])


def test_one_key_for_all_is_spread() -> None:
    """Requests that all begin alike fill the engines evenly, as far as the bound asks for it."""
    loads = dict.fromkeys(NAMES, 0)
    for _ in range(400):
        loads[choose(b"the same", loads)] += 1
    assert max(loads.values()) <= LOAD_FACTOR * 100 + 1
    assert min(loads.values()) >= 20
