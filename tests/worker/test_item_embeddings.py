"""The embeddings that chunks take are found once and go to the right tokens; a decode examines no item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

import pytest
import torch
from torch import Tensor

from corellm.multimodal import MultiModalFeature, PlaceholderRange
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence, SequenceChunk, item_slices
from corellm.worker.item_embeddings import select_embeddings
from corellm.worker.sequence_state import SequenceState


def items(count: int) -> list[MultiModalFeature]:
    """Items of four tokens each, the first and the last of which take no embedding, with one token between items."""
    places = (PlaceholderRange(5 * i, 4, (False, True, True, False)) for i in range(count))
    data: Any = None
    return [MultiModalFeature("image", i, str(i), place, data) for i, place in enumerate(places)]


@pytest.mark.parametrize(
    ("start", "num_tokens", "expected"),
    [(0, 1, []), (0, 2, [0]), (2, 1, [0]), (3, 3, []), (1, 6, [0, 1]), (0, 100, [0, 1, 2]), (14, 1, []), (90, 1, [])],
)
def test_the_items_of_a_chunk(start: int, num_tokens: int, expected: list[int]) -> None:
    """The items of a chunk are those with an embedding among its tokens."""
    assert [item.index for item in item_slices(items(3), start, start + num_tokens)] == expected
    assert list(item_slices([], start, start + num_tokens)) == []


def test_what_lies_behind_is_not_examined() -> None:
    """A chunk behind 100 items looks at a few of them to find its place."""

    class Watched(list[MultiModalFeature]):
        examined = 0

        @overload
        def __getitem__(self, index: Any) -> MultiModalFeature: ...
        @overload
        def __getitem__(self, index: slice) -> list[MultiModalFeature]: ...
        def __getitem__(self, index: Any) -> Any:
            self.examined += 1
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[MultiModalFeature]:
            raise AssertionError("all items were examined")

    features = Watched(items(100))
    assert list(item_slices(features, 500, 600)) == []
    assert [item.index for item in item_slices(features, 250, 255)] == [50]
    assert features.examined < 20


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_every_token_gets_its_own_embedding(size: int) -> None:
    """Whatever cuts the placeholders: of each item the embeddings in order, at the tokens that take one."""
    features = [*items(3), MultiModalFeature("image", 3, "3", PlaceholderRange(15, 3), *[None])]  # type: ignore[list-item]
    outputs = {feature.identifier: torch.arange(3.0)[: feature.placeholder.num_embeds, None] for feature in features}
    state = SequenceState(
        sequence := NewSequence("r", list(range(20)), [], SamplingParams(), features),
        SamplingState(sequence, 100, 0),
    )
    embeds = torch.full((20,), -1.0)
    for start in range(0, 20, size):
        stop = min(20, start + size)
        chunk = SequenceChunk("r", start, stop - start, [], [], True, list(item_slices(features, start, stop)))

        def output(feature: MultiModalFeature) -> Tensor:
            return outputs[feature.identifier] + 10 * feature.item

        # beside a chunk without items, which lies before it in the batch
        text = SequenceChunk("r", 19, 2, [], [], True)
        mask, selected = select_embeddings([text, chunk], [state, state], output)
        assert not mask[:2].any()
        if selected:
            embeds[start:stop][torch.from_numpy(mask[2:])] = torch.cat(selected)[:, 0]
    no = -1.0
    wanted = [no, 0, 1, no, no, no, 10, 11, no, no, no, 20, 21, no, no, 30, 31, 32, no, no]
    assert embeds.tolist() == wanted
