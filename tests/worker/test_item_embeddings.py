"""The items that a chunk needs are found; a decode behind all items examines none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corellm.multimodal import MultiModalFeature, PlaceholderRange
from corellm.worker.batch import SequenceChunk
from corellm.worker.item_embeddings import touched


def items(count: int) -> list[MultiModalFeature]:
    """Items of four tokens each, the first and the last of which take no embedding, with one token between items."""
    places = (PlaceholderRange(5 * i, 4, (False, True, True, False)) for i in range(count))
    data: Any = None
    return [MultiModalFeature("image", i, str(i), place, data) for i, place in enumerate(places)]


def chunk(start: int, num_tokens: int) -> SequenceChunk:
    return SequenceChunk("request", start, num_tokens, [0] * num_tokens, [0], samples=True)


@pytest.mark.parametrize(
    ("start", "num_tokens", "expected"),
    [(0, 1, []), (0, 2, [0]), (2, 1, [0]), (3, 3, []), (1, 6, [0, 1]), (0, 100, [0, 1, 2]), (14, 1, []), (90, 1, [])],
)
def test_the_items_of_a_chunk(start: int, num_tokens: int, expected: list[int]) -> None:
    """Those with an embedding among its tokens."""
    assert [feature.item for feature in touched(items(3), chunk(start, num_tokens))] == expected
    assert touched([], chunk(start, num_tokens)) == []


def test_a_decode_does_not_go_through_the_items() -> None:
    """Two requests that decode after 100 items each cost a step no more than two without items."""

    class Watched(list[MultiModalFeature]):
        def __iter__(self) -> Iterator[MultiModalFeature]:
            raise AssertionError("all items were examined")

    assert touched(Watched(items(100)), chunk(500, 1)) == []
    with pytest.raises(AssertionError, match="all items were examined"):
        touched(Watched(items(100)), chunk(0, 1))
