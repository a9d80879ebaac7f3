"""What processors put around prompts, and where items stand in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from corellm_transformers.placeholders import Ends, between, candidates, ends, expanded, marked


class Processor:
    """A processor that tokenizes letters, with tokens around them."""

    def __init__(self, *, before: list[int], after: list[int], wants_image: bool = False) -> None:
        self.before, self.after, self.wants_image = before, after, wants_image
        self.image_token, self.image_start_token, self.image_end_token = "<i>", "<b>", "<e>"

    @staticmethod
    def tokenizer(text: str) -> dict[str, list[int]]:
        """The letters, behind a token of its own."""
        return {"input_ids": [1, *map(ord, text)]}

    def __call__(self, text: str, return_tensors: str, images: Any = None) -> dict[str, list[list[int]]]:
        """The tokenizer's tokens, with others around them."""
        if self.wants_image and images is None:
            raise ValueError("an image is wanted")
        tokens = self.tokenizer(text)["input_ids"]
        return {"input_ids": [[*self.before, *tokens, *(self.after if text != "odd" else [])]]}


def test_ends_are_found() -> None:
    assert ends(Processor(before=[7], after=[8, 9])) == Ends((7,), (8, 9))
    assert ends(Processor(before=[], after=[])) == Ends()
    assert ends(Processor(before=[7], after=[8], wants_image=True)) == Ends()
    assert Ends((7,), (8, 9)).put([1, 2]) == [7, 1, 2, 8, 9]


def test_a_beginning_that_repeats_the_tokenizers_is_found() -> None:
    assert ends(Processor(before=[1], after=[])) == Ends((1,), ())


def test_a_token_between_others_is_the_last_candidate() -> None:
    assert list(candidates(Processor(before=[], after=[]), "image"))[-1] == "<b><i><e>"
    assert not list(candidates(SimpleNamespace(tokenizer=None), "audio"))


def test_items_stand_in_the_places_of_their_modality() -> None:
    tokens, spans = expanded(
        [1, 5, 6, 9, 5, 2], {"image": [5], "audio": [9]}, [("image", [50, 51]), ("audio", [90]), ("image", [52])]
    )
    assert tokens == [1, 50, 51, 6, 90, 52, 2]
    assert spans == [(1, 3), (4, 5), (5, 6)]


@pytest.mark.parametrize(
    ("tokens", "placed"),
    [([1, 7, 8, 3], [7, 8]), ([1, 3], []), ([2, 7, 3], None), ([1, 7, 4], None), ([1], None)],
)
def test_what_stands_between(tokens: list[int], placed: list[int] | None) -> None:
    """None where the tokens around it differ."""
    assert between(tokens, [1, 5, 3], [5]) == placed


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("{{ '<b><image><e>' }}", "<b><image><e>"),
        ("{% if x %}<s><b><image>{% endif %}<e>", "<s><b><image>"),
        ("Image: <image>\\n", "<image>"),
        ("no image", "<image>"),
        ("", "<image>"),
    ],
)
def test_a_template_has_tokens_around_an_item(template: str, written: str) -> None:
    """Marks directly before and behind the item are found, as the template has them in one piece."""
    assert marked("<image>", template, ["<b>", "<e>", "<s>"]) == written
