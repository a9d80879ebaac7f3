"""Placeholders: how many embeddings they take, and how many of those lie before a position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm.multimodal.inputs import PlaceholderRange


def test_the_docstring_example():
    """Rows of two embeddings between tokens that take none: ends, counts and prefixes as counted by hand."""
    place = PlaceholderRange(3, 8, (False, True, True, False, True, True, False, False))
    assert (place.end, place.num_embeds) == (11, 4)
    assert [place.embeds_before(p) for p in range(3, 12)] == [0, 0, 1, 2, 2, 3, 4, 4, 4]


@given(
    st.integers(0, 20),
    st.lists(st.booleans(), min_size=1, max_size=20),
    st.booleans(),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_embeds_before_counts_the_mask(offset, mask, all_embed, one, other):
    """`embeds_before` equals counting flagged positions one by one, and chunks add up to the whole."""
    mask = [True] * len(mask) if all_embed else mask
    place = PlaceholderRange(offset, len(mask), None if all_embed else tuple(mask))
    flagged = [offset + i for i, embeds in enumerate(mask) if embeds]
    assert place.num_embeds == len(flagged)
    for position in (one, other):
        assert place.embeds_before(position) == sum(p < position for p in flagged)
    low, high = sorted((one, other))
    chunk = place.embeds_before(high) - place.embeds_before(low)
    assert chunk == sum(low <= p < high for p in flagged)


def test_placeholders_are_frozen_values():
    """Equal placeholders are equal and hash alike, also after their cached counts were read; none can be changed."""
    left, right = (PlaceholderRange(1, 2, (True, False)) for _ in range(2))
    assert left.num_embeds == 1
    assert left == right
    assert hash(left) == hash(right)
    with pytest.raises(AttributeError):
        left.offset = 5
