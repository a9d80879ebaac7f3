"""Arguments of decoders beside embeddings: which follow from the places of items, and what is made of them again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from corellm_transformers.arguments import AddedRows, added_rows, item_mask

PLACES = torch.tensor([False, True, True, False])
ROWS = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "value",
    [
        PLACES[None],
        PLACES[None].long(),
        2 * PLACES[None].int(),
        PLACES[None, :, None],
        PLACES[None, :, None].expand(1, 4, 8),
    ],
    ids=["bool", "int", "types", "one channel", "every channel"],
)
def test_a_mask_is_made_again_for_other_places(value: torch.Tensor) -> None:
    known = item_mask(value, PLACES)
    assert known is not None
    other = torch.tensor([True, False, False])
    made = known.of(other)
    assert made.dtype == value.dtype
    assert made.shape == (1, 3, *value.shape[2:])
    assert bool((made.bool().view(1, 3, -1).all(-1) == other).all())
    assert made.max() == value.max()


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[0, 1, 2, 0]]),  # not the same at all items' tokens
        torch.tensor([[1, 1, 1, 0]]),  # at a text token, too
        torch.tensor([[0.0, 1.0, 1.0, 0.0]]),
        torch.tensor([[0, 1, 1]]),  # of another length
        [1, 1],
    ],
)
def test_what_does_not_follow_from_places_is_no_mask(value: Any) -> None:
    assert item_mask(value, PLACES) is None


def test_rows_of_several_layers_keep_their_form() -> None:
    """A list stays a list; a mapping keeps its keys, in their order."""
    listed, mapped = added_rows([ROWS, 2 * ROWS]), added_rows({5: ROWS, 1: 2 * ROWS})
    assert listed == AddedRows(None, 2)
    assert mapped == AddedRows((5, 1), 2)
    assert listed is not None
    assert mapped is not None
    assert [row is ROWS for row in listed.rows(listed.of([ROWS, ROWS]))] == [True, True]
    made = mapped.of([ROWS, 3 * ROWS])
    assert isinstance(made, dict)
    assert list(made) == [5, 1]
    assert torch.equal(made[1], 3 * ROWS)


@pytest.mark.parametrize("value", [ROWS, [ROWS, ROWS[:1]], [ROWS[None]], [1], None, 3])
def test_other_arguments_are_no_rows(value: Any) -> None:
    assert added_rows(value) is None
