"""Which of what a caller gives is one prompt and which are many; token ids in every form are the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from corellm.errors import PromptError
from corellm.prompts import plain_token_ids, split_prompts

ONE = {"prompt": "a"}


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("text", ["text"]),
        (ONE, [ONE]),
        ([], []),
        (["a", ONE, [1, 2]], ["a", ONE, [1, 2]]),
        (("a", "b"), ["a", "b"]),
        ((prompt for prompt in "ab"), ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ((1, 2), [[1, 2]]),
        (range(3), [[0, 1, 2]]),
        ([np.int64(1), np.int32(2)], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[]], [[]]),
    ],
)
def test_one_or_many(given: Any, prompts: list[Any]) -> None:
    """A list of integers is one prompt, a list of anything else is a prompt each."""
    assert split_prompts(given) == prompts


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_and_tensors(make: Any) -> None:
    """One dimension is one prompt, two dimensions are a prompt per row."""
    (one,) = split_prompts(make([1, 2, 3]))
    assert plain_token_ids(one) == [1, 2, 3]
    assert [plain_token_ids(row) for row in split_prompts(make([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    assert [plain_token_ids(row) for row in split_prompts([make([1, 2]), [3]])] == [[1, 2], [3]]
    assert plain_token_ids(split_prompts([make(1), make(2)])[0]) == [1, 2]


@pytest.mark.parametrize(
    "given",
    [[1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3], np.uint8), torch.tensor([1, 2, 3]), [np.int16(1), 2, 3]],
)
def test_token_ids_become_plain_integers(given: Any) -> None:
    """Whatever held them: nothing behind may depend on numpy's arithmetic."""
    ids = plain_token_ids(given)
    assert ids == [1, 2, 3]
    assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], "but holds float"),
        ([True], "but holds bool"),
        ([None], "but holds NoneType"),
        ([[1]], "but holds list"),
        ("12", "list of integers, got '12'"),
        (b"12", "list of integers"),
        (5, "list of integers, got 5"),
        (np.array(5), "list of integers"),
        (np.array([[1]]), "but holds list"),
        (np.array([1.0]), "but holds float"),
        (torch.tensor([True]), "but holds bool"),
    ],
)
def test_what_is_no_row_of_integers_is_refused(given: Any, message: str) -> None:
    """With what it is."""
    with pytest.raises(PromptError, match=message):
        plain_token_ids(given)
