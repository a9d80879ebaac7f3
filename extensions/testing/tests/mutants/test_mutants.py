"""Each rule of the contract catches the mistakes that it is there for, and names the hook to look at.

A run examines the mutants that a change touches (`selection.py`) and prints their table at the end. `make mutants`
examines all, runs the contract on each until a rule breaks, and the whole contract on unchanged copies.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import corellm_llava
from corellm_testing import AdapterContract
from corellm_testing.rules import rules_of
from extensions.testing.tests.mutants.harness import examine, hooks_named
from extensions.testing.tests.mutants.mutant import LLAVA, Mutant
from extensions.testing.tests.mutants.mutants import CONTRACTS, MUTANTS, PARTS


class Part:
    """Mutants of one part of the contract; one class for each, so that parts can run in parallel."""

    mutants: ClassVar[Sequence[Mutant]]

    def test_a_mutant_is_caught(
        self, mutant: Mutant, tmp_path: Path, record_property: Callable[[str, object], None]
    ) -> None:
        """Its rule breaks, with a message of all five parts that names the hook with the mistake."""
        verdict = examine(mutant.contract, [mutant.rule], tmp_path, mutant)
        broken = verdict.broken(mutant.rule)
        assert broken is not None, str(verdict)
        assert hooks_named(broken.hook) & set(mutant.hooks), str(broken)
        first, *lines = str(broken).splitlines()
        assert first.startswith(f"{broken.hook} ")
        parts = [re.match(r"  (rule|expected|got|fix)  +\S", line) for line in lines]
        assert [part[1] for part in parts if part] == ["rule", "expected", "got", "fix"], str(broken)
        assert broken.rule.startswith(f"{mutant.rule.partition('[')[0]}: ")
        said = [broken.hook, str(broken.expected), str(broken.got)]
        record_property("mutant", [mutant.family, mutant.wrong, mutant.rule, *said])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each mutant of a part."""
    if "mutant" in metafunc.fixturenames:
        metafunc.parametrize("mutant", metafunc.cls.mutants, ids=lambda mutant: f"{mutant.family}: {mutant.wrong}")


for _name, _mutants in PARTS.items():
    globals()[f"Test{_name}"] = type(f"Test{_name}", (Part,), {"mutants": _mutants})


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.rpartition("::")[2])
def test_without_a_mistake_the_rules_are_kept(contract: str, tmp_path: Path) -> None:
    """An unchanged copy, run in the same way, keeps rules that import it, start processes and use all of its hooks.

    That the plugin itself keeps every rule its own tests show.
    """
    rules = [
        "test_import_is_light", "test_it_loads", "test_text_and_media_equal_the_hf_processor",
        "test_greedy_equals_the_reference[16-prefix-caching]",
    ]  # fmt: skip
    verdict = examine(contract, rules, tmp_path)
    assert not {**verdict.caught, **verdict.crashed, **verdict.not_run}, str(verdict)
    assert {*verdict.passed} == set(rules)


def test_every_rule_has_a_mutant() -> None:
    """Every rule of the contract is broken by at least one mutant."""
    assert set(rules_of(AdapterContract)) == {mutant.rule.partition("[")[0] for mutant in MUTANTS}


def test_mutants_differ() -> None:
    """No two mutants share a name or an edit."""
    assert len({(mutant.family, mutant.wrong) for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.contract, mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_edit_fits() -> None:
    """The code that a mutant replaces occurs exactly once in its plugin, and the edited file is still Python."""
    for mutant in MUTANTS:
        folder = Path(str(importlib.import_module(mutant.package).__file__)).parent
        compile(mutant.edit((folder / mutant.file).read_text(encoding="utf-8")), mutant.file, "exec")


def test_an_edit_must_fit(tmp_path: Path) -> None:
    """Where the plugin has changed, its mutant raises instead of testing the unchanged plugin."""
    mutant = LLAVA.edited("not there", "test_it_loads", "load_model", old="def nothing(", new="")
    with pytest.raises(ValueError, match=r"Llava, not there: __init__\.py .*0 times"):
        examine(mutant.contract, [mutant.rule], tmp_path, mutant)


def test_a_given_method_must_be_new(tmp_path: Path) -> None:
    """One that the plugin has raises: the plugin's own, which comes later, would count."""
    method = "@hookimpl\ndef get_placeholder_str(self):\n    return None"
    mutant = LLAVA.given("nothing in its place", "test_it_loads", "get_placeholder_str", method)
    with pytest.raises(ValueError, match=r"__init__\.py .*Llava\.get_placeholder_str .*Plugin\.edited"):
        examine(mutant.contract, [mutant.rule], tmp_path, mutant)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Afterwards the installed plugin's module and `sys.path` are as before."""
    path = list(sys.path)
    examine(LLAVA.contract, ["test_it_loads"], tmp_path)
    assert sys.modules["corellm_llava"] is corellm_llava
    assert sys.path == path
