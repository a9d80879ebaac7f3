"""Comparing outputs of processors."""

from __future__ import annotations

import pytest
import torch

from corellm_testing.subject import same_output

ROWS = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ROWS, ROWS.clone(), True),
        (ROWS, ROWS + 1, False),
        (ROWS, ROWS[:1], False),
        ([ROWS, ROWS[:1]], [ROWS, ROWS[:1]], True),
        ([ROWS, ROWS[:1]], [ROWS, ROWS[1:]], False),
        ([ROWS], [ROWS, ROWS], False),
        ([[ROWS], []], [[ROWS.clone()], []], True),
        ([ROWS], ROWS[None], False),
        ([1, "a"], [1, "a"], True),
        (None, 0, False),
    ],
)
def test_tensors_are_compared_in_lists_too(one: object, other: object, same: bool) -> None:
    assert same_output({"pixels": one}, {"pixels": other}) is same
    assert not same_output({"pixels": one}, {"others": one})
