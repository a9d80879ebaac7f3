"""Places of blocks in layers with a window: who has one, for how long, and what is found again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.request import Request
from corellm.scheduling.window_blocks import WindowBlocks, most_places
from tests.scheduling.fake_worker import make_request

BLOCK = 4


def manager(num_places: int, window: int = 6, num_blocks: int = 40, num_host_blocks: int = 0) -> BlockManager:
    """Blocks of four tokens."""
    windows = WindowBlocks(num_blocks, num_places, BLOCK, window)
    return BlockManager(
        num_blocks, BLOCK, enable_prefix_caching=True, num_host_blocks=num_host_blocks, make_users=lambda _: [windows]
    )


def compute(blocks: BlockManager, request: Request, stop: int) -> dict[int, int]:
    """Compute a request up to `stop`; return the places that changed."""
    blocks.reach(request, request.num_computed_tokens, stop)
    changes = dict(blocks.take_messages().get("windows", ()))
    request.num_computed_tokens = stop
    blocks.mark_computed(request)
    blocks.check_integrity()
    return changes


def begin(blocks: BlockManager, name: str, tokens: list[int]) -> Request:
    """Admit a request with what is cached."""
    request = make_request(name, tokens)
    computed = blocks.get_computed_blocks(request)
    assert blocks.allocate(request, len(tokens) - len(computed) * BLOCK, computed)
    request.num_computed_tokens = len(computed) * BLOCK
    return request


def test_a_sequence_needs_places_for_its_window_and_its_chunk_only() -> None:
    """Forty tokens in ten blocks, four places: each chunk of a block takes the place of the one that fell behind."""
    blocks = manager(num_places=1 + 4)
    request = begin(blocks, "r", list(range(1, 41)))
    for stop in range(4, 41, 4):
        changes = compute(blocks, request, stop)
        table = blocks.block_table("r")
        assert changes[table[stop // BLOCK - 1]] > 0
    blocks.free(request)
    blocks.check_integrity()


def test_a_prefix_is_found_only_where_the_window_behind_it_is_kept() -> None:
    """The longest prefix whose last blocks still have places."""
    blocks = manager(num_places=1 + 4)
    first = begin(blocks, "first", list(range(1, 34)))
    for stop in (8, 16, 24, 32, 33):
        compute(blocks, first, stop)
    blocks.free(first)
    same = make_request("same", list(range(1, 34)))
    assert len(blocks.get_computed_blocks(same)) == 8
    shorter = make_request("shorter", [*range(1, 17), 99, 99, 99])
    assert blocks.get_computed_blocks(shorter) == [], "its window's places went to later blocks"


def test_a_prefix_that_lost_its_places_is_found_again_once_it_is_computed_again() -> None:
    """Its new blocks take the place of those under its hashes."""
    blocks = manager(num_places=1 + 6, num_blocks=200)
    tokens = list(range(1, 22))

    def run(name: str, prompt: list[int]) -> int:
        request = begin(blocks, name, prompt)
        found = request.num_computed_tokens
        for stop in range(found + BLOCK, len(prompt) + BLOCK, BLOCK):
            compute(blocks, request, min(stop, len(prompt)))
        blocks.free(request)
        return found

    assert [run("a", tokens), run("b", tokens)] == [0, 20]
    for other in range(3):
        run(f"other-{other}", list(range(100 * other + 50, 100 * other + 71)))
    assert [run("c", tokens), run("d", tokens)] == [0, 20]
    assert blocks.num_free_blocks == blocks.capacity


def test_a_block_with_other_contents_has_no_place_yet() -> None:
    """Else its old place would pass for a cached one."""
    blocks = manager(num_places=30, num_blocks=6)
    first = begin(blocks, "first", list(range(1, 21)))
    compute(blocks, first, 20)
    blocks.free(first)
    other = begin(blocks, "other", list(range(50, 70)))
    changes = compute(blocks, other, 8)
    assert {changes[block] > 0 for block in blocks.block_table("other")[:2]} == {True}
    assert all(changes.get(block, 0) == 0 for block in blocks.block_table("other")[2:])


@pytest.mark.parametrize("evicted", [False, True])
def test_a_swapped_sequence_shares_cached_blocks_only_with_their_places(evicted: bool) -> None:
    """A block that is still cached, but not in layers with a window, is copied back from the host."""
    blocks = manager(num_places=1 + 6, num_host_blocks=10)
    request = begin(blocks, "r", list(range(1, 17)))
    compute(blocks, request, 16)
    assert blocks.swap_out(request) is not None
    if evicted:
        other = begin(blocks, "other", list(range(50, 71)))
        compute(blocks, other, 21)
        blocks.free(other)
    copies = blocks.swap_in(request)
    assert copies is not None
    table = blocks.block_table("r")
    windowed = range(16 - 6 + 1, 16)
    copied = {device for _, device in copies}
    changes = compute(blocks, request, 16)
    for position in windowed:
        block = table[position // BLOCK]
        assert block in copied or not evicted, "a block without its window's keys is shared"
        assert evicted == (changes.get(block, 0) > 0)


@given(
    window=st.integers(1, 20),
    block_size=st.integers(1, 8),
    lens=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    budget=st.integers(1, 30),
    data=st.data(),
)
def test_places_never_run_out(window: int, block_size: int, lens: list[int], budget: int, data: st.DataObject) -> None:
    """With as many as `most_places` says: any sequences, any chunks within a step's tokens, in any order."""
    windows = WindowBlocks(1000, most_places(window, block_size, len(lens), budget), block_size, window)
    tables = [list(range(1 + 100 * i, 1 + 100 * i + 60)) for i in range(len(lens))]
    requests = [make_request(str(i), [1]) for i in range(len(lens))]
    while (computed := [request.num_computed_tokens for request in requests]) != lens:
        left = budget
        chunks = []
        for i in data.draw(st.permutations(range(len(lens)))):
            count = min(left, lens[i] - computed[i], data.draw(st.integers(0, budget)))
            if count:
                windows.reach(str(i), tables[i], computed[i], computed[i] + count)
                chunks.append((i, count))
                left -= count
        if not chunks:
            i = next(i for i, length in enumerate(lens) if computed[i] < length)
            windows.reach(str(i), tables[i], computed[i], computed[i] + 1)
            chunks.append((i, 1))
        for i, count in chunks:
            requests[i].num_computed_tokens += count
            windows.computed(requests[i])
        windows.check_integrity()
