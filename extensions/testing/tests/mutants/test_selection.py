"""Which mutants a change touches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extensions.testing.tests.mutants import selection
from extensions.testing.tests.mutants.mutant import FUYU, LLAVA, Mutant
from extensions.testing.tests.mutants.mutants import MUTANTS

ONE = next(mutant for mutant in MUTANTS if mutant.package == LLAVA.package)
OTHER = next(mutant for mutant in MUTANTS if mutant.package == FUYU.package)


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(selection, "CAUGHT", tmp_path / "caught.txt")
    cached = [selection._package, selection._room, selection._imports, selection._source]
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def _record(*mutants: Mutant) -> None:
    selection.record({(mutant.family, mutant.wrong) for mutant in mutants})


def test_a_mutant_is_touched_until_it_is_caught() -> None:
    """What was not seen caught is examined; of others nothing is forgotten."""
    assert selection.touched(ONE, selection.fingerprints())
    _record(ONE)
    _record(OTHER)
    known = selection.fingerprints()
    assert not selection.touched(ONE, known)
    assert not selection.touched(OTHER, known)
    assert len(known) == 2


def test_its_own_change_touches_it() -> None:
    _record(ONE)
    known = selection.fingerprints()
    for changed in (replace(ONE, new="pass"), replace(ONE, rule="test_it_loads"), replace(ONE, hook="load_model")):
        assert selection.touched(changed, known)


@pytest.mark.parametrize(("module", "touches"), [("base", True), ("same_outputs", True), ("packaging", False)])
def test_a_module_that_its_rule_stands_on_touches_it(
    module: str, touches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of another rule's module does not."""
    mutant = next(mutant for mutant in MUTANTS if "greedy" in mutant.rule)
    _record(mutant)
    known, source = selection.fingerprints(), selection._source
    changed = f"corellm_testing.contract.{module}"
    monkeypatch.setattr(selection, "_source", lambda name: source(name) + b"#" * (name == changed))
    assert selection.touched(mutant, known) is touches


def test_a_change_of_its_plugin_touches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _record(ONE, OTHER)
    known, package = selection.fingerprints(), selection._package
    monkeypatch.setattr(selection, "_package", lambda name: package(name) + b"x" * (name == ONE.package))
    assert selection.touched(ONE, known)
    assert not selection.touched(OTHER, known)


def test_what_is_recorded_is_a_mutant() -> None:
    """A line of a mutant that is no more goes with the next record."""
    selection.CAUGHT.write_text("0000000000000000 Llava: a mistake that is no more\n", encoding="utf-8")
    _record(ONE)
    assert list(selection.fingerprints()) == [f"{ONE.family}: {ONE.wrong}"]
