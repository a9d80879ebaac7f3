"""The proofs of `make forms` in short: sampled outputs and damaged calls; and that they see what is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from extensions.structured.tests.proof import calls, hostile, outputs
from extensions.structured.tests.proof.sampling import problem

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 10}}, "additionalProperties": False}
FORMS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"json": SCHEMA}, '{"a": 12}', '{"a": 1', '{"b'),
    ({"json": SCHEMA}, "{}", '{"a"', '{"a": "'),
    ({"json_object": True}, '{"é": [1]}', '{"é": [1', "[1"),
    ({"regex": "ab{2}c"}, "abbc", "ab", "ac"),
    ({"choice": ["one", "two"]}, "two", "tw", "tt"),
    ({"grammar": 'root ::= "(" root ")" | [0-9]'}, "((1))", "((1", "()"),
]
"""A form, a whole output, one that was cut, and one that neither is."""


@pytest.mark.parametrize(("form", "whole", "cut", "wrong"), FORMS)
def test_outputs_are_judged(form: dict[str, Any], whole: str, cut: str, wrong: str) -> None:
    """By libraries that know nothing of how they came to be."""
    assert problem(form, whole, is_whole=True) is None
    assert problem(form, cut, is_whole=False) is None
    assert problem(form, cut, is_whole=True) is not None
    for is_whole in (True, False):
        assert problem(form, wrong, is_whole=is_whole) is not None


def test_sampled_outputs(tiny_llava: Path) -> None:
    """A batch: of their forms, and the same alone, in chunks, preempted by recompute and by swap, and over HTTP."""
    counts = outputs.run(tiny_llava, seed=1, count=outputs.BATCH)
    assert counts["preempted by recompute"] > 0
    assert counts["preempted by swap"] > 0
    assert counts["json, whole"] > 5
    assert counts["of no form"] > 2


def test_damaged_calls() -> None:
    """Each parser finds some in spite of the damage."""
    counts: Counter[str] = Counter()
    for number in range(200):
        rng = Random(f"0 {number}")
        name, text = calls.damaged(rng)
        counts[name] += calls.check(name, text, rng)
    assert all(counts[name] for name in calls.PARSERS)


def test_a_case_is_made_of_its_number() -> None:
    """The same again, so that it can be sent again; another is different."""
    assert hostile.encoded(hostile.body(0, 7)) == hostile.encoded(hostile.body(0, 7))
    assert len({hostile.encoded(hostile.body(seed, number)) for seed in (0, 1) for number in range(50)}) == 100
    assert len({calls.damaged(Random(f"0 {number}")) for number in range(50)}) > 45
    assert calls.begins_object('{"a": "x')
    for wrong in ('{"a": x', "[1", "3"):
        assert not calls.begins_object(wrong)
