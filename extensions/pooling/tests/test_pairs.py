"""A query and a document as one prompt: texts and items in the order of the template, nothing of either lost."""

from __future__ import annotations

from typing import Any

import pytest

from corellm.errors import InvalidParameterError, PromptError
from corellm_pooling.pairs import join_pair, text_pair
from tests.fixtures import random_image

ONE, OTHER, THIRD = (random_image(4, 4, seed) for seed in range(3))


def with_items(text: str, uuids: Any = None, **items: Any) -> dict[str, Any]:
    """A prompt with items, as users write it."""
    return {"prompt": text, "multi_modal_data": items, **({} if uuids is None else {"multi_modal_uuids": uuids})}


def test_texts_stand_in_their_places() -> None:
    """A text that has a place in it is text."""
    joined = join_pair("a {document}", {"prompt": "{query}"}, "D: {document} Q: {query}.")
    assert joined == {"prompt": "D: {query} Q: a {document}."}


def test_items_of_one_side_stay_as_they_are() -> None:
    """Whatever form they have: `multi_modal_data` has many."""
    given = with_items("a", {"image": "u"}, image=(ONE, OTHER))
    for document in ("b", with_items("b")):
        assert join_pair(given, document, "{query}{document}") == {**given, "prompt": "ab"}


def test_items_of_both_sides() -> None:
    """In the order of the template, each with its uuid; a list of frames is one video."""
    query = with_items("a", image=[ONE, OTHER], video=[ONE, OTHER])
    document = with_items("b", {"image": "u"}, image=THIRD, video=[THIRD])
    joined = join_pair(query, document, "{document}{query}")
    assert joined == {
        "prompt": "ba",
        "multi_modal_data": {"image": [THIRD, ONE, OTHER], "video": [[THIRD], [ONE, OTHER]]},
        "multi_modal_uuids": {"image": ["u", None, None], "video": [None, None]},
    }


def test_a_pair_of_texts_keeps_the_rest() -> None:
    """Items of a document are not dropped: the input processor then refuses them."""
    assert text_pair("a", {"prompt": "b", "multi_modal_data": {"image": ONE}, "priority": 1}) == {
        "prompt": "a", "text_pair": "b", "multi_modal_data": {"image": ONE}, "priority": 1,
    }  # fmt: skip


@pytest.mark.parametrize("template", ["", "{query}", "{document}", "{query}{document}{query}"])
def test_a_template_has_each_place_once(template: str) -> None:
    """Refused with the places that it needs."""
    with pytest.raises(InvalidParameterError, match=r"{query} and {document}"):
        join_pair("a", "b", template)


@pytest.mark.parametrize("side", [[1, 2], {"prompt": "a", "prompt_token_ids": [1]}, [{"role": "user", "content": "a"}]])
def test_a_side_without_text(side: Any) -> None:
    """Token ids and conversations cannot stand within a text."""
    with pytest.raises(PromptError, match="text in both"):
        join_pair("a", side, "{query}{document}")
