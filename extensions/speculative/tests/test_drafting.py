"""When drafts are made: as long as they pay, by what was right and what steps cost. No model and no clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from corellm import SamplingParams
from corellm.scheduling.batch import NewSequence, ScheduledBatch, SequenceChunk
from corellm_speculative.costs import StepCosts
from corellm_speculative.lookup import LookupDrafting
from corellm_speculative.settings import DraftSettings

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 8}
LOOP = [*range(100, 110)]


class Engine:
    """Runs one sequence at a time through a part: each step takes `base` seconds, and `row` for each row."""

    def __init__(self, given: dict[str, Any], *, base: float = 1.0, row: float = 0.05) -> None:
        self.now, self._base, self._row = 0.0, base, row
        self.part = LookupDrafting(DraftSettings.of(given), clock=lambda: self.now)

    def run(self, prompt: list[int], text: Sequence[int], name: str = "a", **given: Any) -> list[int]:
        """Return the number of drafts in each step of a sequence that says a text."""
        output: list[int] = []
        sequence = NewSequence(name, prompt, output, SamplingParams(), (), **given)
        drafts, counts = [], []
        batch = ScheduledBatch(new=[sequence], chunks=[SequenceChunk(name, 0, len(prompt), prompt, [], True)])
        left = list(text)
        while left:
            self.part.begin(batch)
            self.now += self._base + self._row * batch.num_tokens
            right = next((i for i, (a, b) in enumerate(zip(drafts, left, strict=False)) if a != b), len(drafts))
            sampled = left[: right + 1]
            drafts = list(self.part.propose({name: sampled}).get(name, ()))
            output += sampled
            del left[: right + 1]
            counts.append(len(drafts))
            chunk = SequenceChunk(name, 0, 1 + len(drafts), [0, *drafts], [], True, num_drafts=len(drafts))
            batch = ScheduledBatch(chunks=[chunk])
        self.part.begin(ScheduledBatch(released=[name]))
        return counts


def misleading(size: int, seed: int) -> list[int]:
    """Return a text whose pairs come again all the time, and go on otherwise."""
    random = Random(seed)
    return [random.randrange(5) for _ in range(size)]


def test_a_text_that_repeats_its_prompt_is_drafted_to_the_full() -> None:
    """And takes a fraction of the steps."""
    counts = Engine(NGRAM).run([*LOOP * 3], LOOP * 10)
    assert len(counts) < 35
    assert counts[10:-2] == [4] * len(counts[10:-2])


def test_drafting_stops_where_it_does_not_pay_and_comes_back() -> None:
    """Rows are dear: a text that only seems to come again is left alone, until one does."""
    engine = Engine(NGRAM, row=0.5)
    first = engine.run([*range(50, 60)], misleading(600, 1))
    assert sum(first[-200:]) < 20
    assert sum(first[-200:]) < sum(first[:200])
    second = engine.run([*LOOP * 3], [*misleading(300, 2), *LOOP * 20])
    assert sum(second[20:290]) < 30
    assert sum(second[300:]) > 50


def test_the_same_text_is_drafted_where_rows_cost_nothing() -> None:
    """What pays depends on the steps."""
    assert sum(Engine(NGRAM, row=0.0).run([*range(50, 60)], misleading(300, 1))) > 300


def test_the_part_rests_while_it_has_nothing_to_draft() -> None:
    """Eight steps after the last one; a draft ends it."""
    engine = Engine(NGRAM)
    engine.run([1], range(200, 210))
    assert engine.part.rests
    engine.run(LOOP * 3, LOOP * 3)
    assert not engine.part.rests


@pytest.mark.parametrize(("salt", "is_known"), [("one", True), ("two", False), (None, False)])
def test_outputs_of_earlier_requests_are_drafted_for_the_same_salt(salt: str | None, is_known: bool) -> None:
    """Once they have ended; with `ngram` none are."""
    engine, text = Engine({"method": "suffix"}), [*range(300, 340)]
    assert sum(engine.run([1], text, "a", cache_salt="one")) == 0
    assert (sum(engine.run([2], text, "b", cache_salt=salt)) > 20) == is_known
    engine = Engine(NGRAM)
    engine.run([1], text, "a", cache_salt="one")
    assert sum(engine.run([2], text, "b", cache_salt="one")) == 0


def test_an_output_is_kept_once_however_often_it_was_preempted() -> None:
    """It comes back with what it had."""
    part = LookupDrafting(DraftSettings.of({"method": "suffix"}))
    output: list[int] = []
    for _ in range(3):
        part.begin(ScheduledBatch(new=[NewSequence("a", [1], output, SamplingParams(), ())]))
        output += range(len(output), len(output) + 10)
        part.begin(ScheduledBatch(released=["a"]))
    assert part.outputs is not None
    assert part.outputs.num_tokens == 33  # with a mark behind each piece


def test_the_cost_of_a_row_is_measured() -> None:
    """In steps of different sizes; single slow steps do not count."""
    costs = StepCosts()
    for step in range(200):
        rows = 1 + step % 5
        costs.note(rows, (1 + 0.1 * rows) * (20 if step % 23 == 0 else 1))
    assert costs.least_chance(1) == pytest.approx(1.15 * 0.1 / 1.1, rel=0.1)
    assert costs.least_chance(8) == pytest.approx(1.15 * 0.8 / 1.8, rel=0.1)
