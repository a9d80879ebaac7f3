"""The committed page of kinds has all of transformers' multimodal kinds, and its counts are those of its rows."""

from __future__ import annotations

import re
from collections import Counter

from corellm.plugin.adapters import KNOWN_FAMILIES
from corellm_transformers.tiny.kinds import KINDS
from tests.kinds.__main__ import PAGE, kinds, outcomes_of, page, speech_kinds
from tests.kinds.outcome import ROOT, Outcome

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_lists_every_kind() -> None:
    """It lists those of the installed transformers, each with its architecture, and no other."""
    known = {**kinds(), **speech_kinds()}
    assert list(outcomes_of(TEXT)) == list(known)
    assert dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", TEXT, re.MULTILINE)) == known


def test_the_counts_are_those_of_the_rows() -> None:
    counts = Counter(outcome.what for outcome in outcomes_of(TEXT).values())
    stated = re.search(rf"^{counts.total()} kinds: (.*)\.$", TEXT, re.MULTILINE)
    assert stated is not None
    assert {what: int(count) for count, what in re.findall(r"(\d+) ([a-z ]+)", stated[1])} == counts


def test_the_count_of_the_oldest_release_is_that_of_its_rows() -> None:
    """At least as many as were asked for when there were no others."""
    oldest = (ROOT / "tests" / "kinds" / "transformers_5_17.txt").read_text(encoding="utf-8").split()
    outcomes = outcomes_of(TEXT)
    served = [kind for kind in oldest if outcomes[kind].what in ("passes", "its own plugin")]
    assert f"Of the {len(oldest)} kinds of transformers 5.17, beside those of speech below, {len(served)} are" in TEXT
    assert (len(oldest), len(served) >= 84) == (98, True)


def test_no_kind_fails_and_enough_pass() -> None:
    """What does not pass is refused, or cannot be tried: nothing runs wrong."""
    counts = Counter(outcome.what for outcome in outcomes_of(TEXT).values())
    assert counts["fails"] == 0
    assert counts["passes"] + counts["its own plugin"] >= 75


def test_a_kind_with_a_plugin_is_not_the_generic_adapters() -> None:
    owned = {kind for kind, outcome in outcomes_of(TEXT).items() if outcome.what == "its own plugin"}
    assert owned == {kind for kind, architecture in kinds().items() if architecture in KNOWN_FAMILIES}


def test_every_recipe_is_of_a_kind() -> None:
    assert KINDS.keys() <= set(kinds().values())


def test_a_page_is_read_as_it_is_written() -> None:
    """Reasons may have any characters."""
    outcomes = {
        "a": Outcome("passes", "image; video with torchvision"),
        "b": Outcome("refused", "no: '<image>' | 'x'"),
        "c": Outcome("its own plugin"),
    }
    text = page(outcomes, {"a": "A", "b": "B", "c": "C"})
    assert outcomes_of(text) == outcomes
    assert "3 kinds: 1 its own plugin, 1 passes, 1 refused." in text
