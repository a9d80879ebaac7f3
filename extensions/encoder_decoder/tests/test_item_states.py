"""The engine's bookkeeping where a decoder attends to states of items, beside its own tokens; no model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm.errors import ContractError, PromptTooLongError
from corellm.multimodal.inputs import MultiModalFeature, PlaceholderRange
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import SequenceChunk
from corellm.scheduling.block_hash import extend_block_hashes
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PLAIN
from corellm_encoder_decoder.hook_results import visible_states_of
from corellm_encoder_decoder.item_prompt import ItemPrompt, VisibleStates
from corellm_encoder_decoder.item_states import visible_ranges
from extensions.encoder_decoder.tests.test_encoder_prompt import BLOCK, Worker, make_scheduler, run_all
from tests.scheduling.fake_worker import make_feature

STATES = 3


def make_item(identifier: str, offset: int, num_states: int = STATES) -> MultiModalFeature:
    """An item of one token and some states."""
    feature = make_feature(identifier, offset, 1)
    feature.placeholder = PlaceholderRange(offset, 1, num_states=num_states)
    return feature


def make_request(
    name: str, tokens: Sequence[int], items: Sequence[MultiModalFeature] = (), *, max_tokens: int = 4, salt: str = ""
) -> Request:
    """A request whose decoder reads `tokens`, and attends to the items' states, if there are any."""
    cache_salt = salt or None
    return Request(
        name,
        list(tokens),
        SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        items,
        cache_salt=cache_salt,
        part=ItemPrompt.of_items(items, [(0, 0, STATES)], cache_salt) if items else PLAIN,
    )


def test_a_placeholder_of_states() -> None:
    """One token, behind which are all embeddings."""
    place = PlaceholderRange(4, 1, num_states=6)
    assert (place.num_embeds, place.embeds_before(4), place.embeds_before(5)) == (6, 0, 6)


def test_all_states_are_written_in_the_first_step() -> None:
    """Also those of an item behind the first chunk: tokens may see them before its own."""
    scheduler = make_scheduler(budget=7)
    request = make_request("a", range(10), [make_item("cat", 1), make_item("dog", 8)])
    worker = Worker([request])
    scheduler.add_request(request)
    batch = scheduler.schedule()
    (chunk,) = batch.chunks
    assert (chunk.num_tokens, batch.encode) == (7, [("a", 0), ("a", 1)])
    assert [(note.num_states, note.encodes) for note in chunk.notes] == [(6, True)]
    assert batch.new[0].part == {"visible_states": [(0, 0, STATES)]}
    worker.run(scheduler, batch)
    (chunk,) = scheduler.schedule().chunks
    assert [note.encodes for note in chunk.notes] == [False]
    assert not chunk.items


def test_text_has_no_states() -> None:
    """It takes blocks for its tokens alone, and tells the worker nothing."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", range(BLOCK)))
    (chunk,) = scheduler.schedule().chunks
    assert not chunk.notes
    assert scheduler.blocks.num_free_blocks == 20 - 1


def test_equal_items_share_states_and_equal_beginnings_their_blocks() -> None:
    """Behind other text the states are the same; behind the same text the decoder's blocks are, too."""
    scheduler = make_scheduler(60)
    cat = [make_item("cat", 1)]
    prompts = {"a": range(9), "b": [9, *range(1, 9)], "c": [*range(8), 20, 21]}
    requests = [make_request(name, tokens, cat, max_tokens=2) for name, tokens in prompts.items()]
    worker = Worker(requests)
    for request in requests:
        scheduler.add_request(request)
        while scheduler.has_unfinished_requests():
            worker.run(scheduler, scheduler.schedule())
    assert worker.encoded == ["a"]
    assert [request.num_cached_tokens for request in requests] == [0, 0, 8]


@pytest.mark.parametrize(
    "other",
    [
        make_request("b", [1] * 8, [make_item("dog", 0)]),
        make_request("b", [1] * 8, [make_item("dog", 0), make_item("cat", 6)]),
        make_request("b", [1] * 8, [make_item("cat", 0, 4)]),
        make_request("b", [1] * 8, [make_item("cat", 0)], salt="x"),
        make_request("b", [1] * 8),
    ],
)
def test_blocks_depend_on_all_items(other: Request) -> None:
    """Also on those behind them."""
    one, same = (make_request(name, [1] * 8, [make_item("cat", 0)]) for name in "ac")
    for request in (one, same, other):
        extend_block_hashes(request, BLOCK, 2)
    assert one.block_hashes == same.block_hashes
    assert not set(one.block_hashes) & set(other.block_hashes)


def test_what_can_never_fit_is_refused() -> None:
    """More states than the cache holds beside the tokens: with the numbers."""
    request = make_request("a", range(9), [make_item("cat", 0, 8)])
    assert not make_scheduler(5).add_request(request)
    assert isinstance(request.error, PromptTooLongError)
    assert re.search("8 states.* 9 tokens.*KV cache of 16", str(request.error))


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.sampled_from("xyz"), max_size=2), st.integers(1, 12)),
        min_size=1,
        max_size=7,
    ),
    mode=st.sampled_from(["recompute", "swap"]),
    caching=st.booleans(),
    blocks=st.integers(9, 16),
    budget=st.sampled_from([1, 3, 16, 64]),
)
def test_any_load_ends_and_attends_to_its_own_states(
    prompts: list[tuple[int, list[str], int]], mode: str, caching: bool, blocks: int, budget: int
) -> None:
    """With few blocks, preempted either way, beside text alone: each chunk finds its states."""
    requests = [
        make_request(
            str(i),
            [7] * (length + len(items)),
            [make_item(name, at) for at, name in enumerate(items)],
            max_tokens=output,
        )
        for i, (length, items, output) in enumerate(prompts)
    ]
    scheduler = make_scheduler(blocks, caching=caching, host=12, budget=budget, preemption_mode=mode)
    run_all(scheduler, requests)
    assert all(len(r.output_token_ids) == r.max_output_tokens for r in requests)


def test_ranges_of_a_chunk() -> None:
    """A range holds until the next one, and beyond the prompt; before the first is none."""
    visible: list[VisibleStates] = [(2, 0, 4), (5, 4, 9)]
    whole = visible_ranges(visible, SequenceChunk("", 0, 8, [0] * 8, [], samples=True))
    assert whole.T.tolist() == [[0, 0]] * 2 + [[0, 4]] * 3 + [[4, 9]] * 3
    parts = [visible_ranges(visible, SequenceChunk("", at, 3, [0] * 3, [], samples=True)) for at in (0, 3, 6)]
    assert np.concatenate(parts, axis=1)[:, :8].tolist() == whole.tolist()
    assert not visible_ranges((), SequenceChunk("", 0, 2, [0] * 2, [], samples=True)).any()


class Hooks:
    """Hooks of an adapter that states these ranges."""

    def __init__(self, given: object) -> None:
        self._given = given

    def get_visible_states(self, **_: object) -> object:
        return self._given


def visible_of(given: object, *items: MultiModalFeature) -> tuple[VisibleStates, ...]:
    return visible_states_of(Hooks(given), [0] * 5, items or [make_item("cat", 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [[(5, 0, 1)], [(-1, 0, 1)], [(2, 0, 1), (2, 1, 2)], [(3, 0, 1), (1, 0, 1)], [(0, 2, 1)], [(0, 0, STATES + 1)]],
)
def test_ranges_of_other_tokens_or_states_are_refused(given: object) -> None:
    """With what there is, and what was given."""
    with pytest.raises(ContractError, match=r"5 tokens and its items' 3 states, got \["):
        visible_of(given)


def test_ranges_that_are_right() -> None:
    """An empty one is: the token sees none."""
    assert visible_of([(0, 0, 0), (4, 1, 3)]) == ((0, 0, 0), (4, 1, 3))
    assert visible_of([]) == ()


def test_an_item_without_states_is_refused() -> None:
    """No token takes its embeddings: they would get lost."""
    with pytest.raises(ContractError, match=r"image 0.*PromptUpdateDetails\.num_states"):
        visible_of([(0, 0, 1)], make_feature("cat", 1, 1))
