"""Changes made by the syntax tree: what they change, where, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.testing.tests.mutants.equivalent import EQUIVALENT
from extensions.testing.tests.mutants.surveyed import Outcome, Outcomes, tally
from extensions.testing.tests.mutants.systematic import changes
from extensions.testing.tests.mutants.systematic_survey import FAMILIES, changes_of, package_of

SOURCE = '''"""Not changed."""
from __future__ import annotations
import os
__all__ = ["Adapter"]
_Kind = TypeVar("_Kind")
class Adapter:
    """Not changed."""
    names: list[str] = ["a"]
    def hook(self, x: int = 3) -> int | None:
        """Not changed."""
        if x < 4 and not self.names:
            return os.path.join("b", str(x))
        if x == 5: return None
        def inner(y):
            if not y:
                raise ValueError(f"not {y or 1}")
            return y + 1
        return [z for z in self.names if z]
'''
CHANGES = {
    "Adapter: 'a'  ->  'aX'", "Adapter: ['a']  ->  []", "Adapter: names: list[str] = ['a']  ->  left out",
    "hook: def hook  ->  left out", "hook: 3  ->  4", "hook: 3  ->  2", "hook: 4  ->  5", "hook: 4  ->  3",
    "hook: x < 4  ->  x <= 4", "hook: x < 4 and (not self.names)  ->  x < 4 or not self.names",
    "hook: return os.path.join('b', str(x))  ->  return", "hook: 'b'  ->  'bX'",
    "hook: os.path.join('b', str(x))  ->  os.path.join(str(x))",
    "hook: os.path.join('b', str(x))  ->  os.path.join('b')",
    "hook: return y + 1  ->  return", "hook: y + 1  ->  y - 1", "hook: 1  ->  2", "hook: 1  ->  0",
    "hook: if not y: raise ValueError(f'not {y or 1}')  ->  if not not y: raise ValueError(f'not {y or 1}')",
    "hook: if not y: raise ValueError(f'not {y or 1}')  ->  left out",
    "hook: x == 5  ->  x != 5", "hook: 5  ->  6", "hook: 5  ->  4", "hook: if x == 5: return None  ->  left out",
    "hook: def inner  ->  left out", "hook: return [z for z in self.names if z]  ->  return",
    "hook: [z for z in self.names if z]  ->  [z for z in self.names]",
}  # fmt: skip


def test_every_part_that_runs_is_changed(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(SOURCE, encoding="utf-8")
    found = [*changes(tmp_path, "file.py")]
    told = {f"{change.where}: {change.old}  ->  {change.new}" for change in found}
    condition = {text for text in told if text.startswith("hook: if x < 4")}
    assert told - condition == CHANGES
    assert len(condition) == 2  # the condition denied, and the whole left out
    assert len({change.source for change in found}) == len(found)
    for change in found:
        compile(change.source, "file.py", "exec")
    found[0].apply(tmp_path)
    assert (tmp_path / "file.py").read_text(encoding="utf-8") == found[0].source


@pytest.mark.parametrize("package", sorted({package_of(family) for family in FAMILIES}))
def test_what_is_equivalent_is_a_change(package: str) -> None:
    """A reason that fits no change any more is out of date."""
    families = [family for family in FAMILIES if package_of(family) == package]
    made = {(change.where, change.old, change.new) for family in families for change in changes_of(family)}
    assert made
    assert {key[1:] for key in EQUIVALENT if key[0] == package} <= made


def test_a_change_keeps_its_name_while_its_function_does(tmp_path: Path) -> None:
    """What is known of it stays known when other functions change."""

    def names(source: str) -> dict[str, str]:
        (tmp_path / "file.py").write_text(source, encoding="utf-8")
        return {change.name: change.where for change in changes(tmp_path, "file.py")}

    before = names(SOURCE)
    assert len(before) == len([*changes(tmp_path, "file.py")])
    after = names(SOURCE.replace("import os\n", "import os\n\nBOUND = 4\n\ndef other(): return 4 + 4\n"))
    assert before.items() <= after.items()
    assert {after[name] for name in after.keys() - before.keys()} == {"", "other"}
    after = names(SOURCE.replace("x < 4", "x < 5"))
    assert {after[name] for name in after.keys() & before.keys()} == {"Adapter"}


def test_outcomes_are_kept_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file.py").write_text(SOURCE.replace("hook", "get_dummy_text"), encoding="utf-8")
    found = [*changes(tmp_path, "file.py")]
    helper = next(change for change in found if change.where == "Adapter")
    told, wrong, crashed, same, survived, left, *_ = (change for change in found if change.where == "get_dummy_text")
    monkeypatch.setitem(EQUIVALENT, ("corellm_mine", same.where, same.old, same.new), "it is the same")
    named = {
        helper: Outcome("test_a", "load_model"),
        told: Outcome("test_a", "load_model or get_dummy_text"),
        wrong: Outcome("test_a", "load_model"),
        crashed: Outcome("test_b"),
        same: Outcome(),
        survived: Outcome(),
    }
    first = Outcomes("mine", tmp_path / "new")
    for change, outcome in named.items():
        first.add(change, Outcome())
        first.add(change, outcome)  # tried again
    outcomes = Outcomes("mine", tmp_path / "new")
    assert {change: outcomes.of(change) for change in (*named, left)} == {**named, left: None}
    counted = tally("corellm_mine", [*named, left], outcomes)
    assert (counted.caught, counted.hooks, counted.told) == (4, 3, 1)
    assert counted.wrong == [(wrong, named[wrong]), (crashed, named[crashed])]
    assert counted.equivalent == [(same, "it is the same")]
    assert (counted.unexplained, counted.untried) == ([survived], [left])
    outcomes.tidy([told, wrong])
    assert len((tmp_path / "new" / "mine.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert Outcomes("mine", tmp_path / "new").of(survived) is None
