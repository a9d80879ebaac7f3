"""Changes made by the syntax tree: what they change, where, and what they leave alone."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.systematic import changes
from tests.mutants.systematic_survey import PLUGINS

SOURCE = '''"""Not changed."""
from __future__ import annotations
import os
__all__ = ["Adapter"]
class Adapter:
    """Not changed."""
    names: list[str] = ["a"]
    def hook(self, x: int = 3) -> int | None:
        """Not changed."""
        if x < 4 and not self.names:
            return os.path.join("b", str(x))
        def inner(y):
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


@pytest.mark.parametrize("name", PLUGINS)
def test_what_is_equivalent_is_a_change(name: str) -> None:
    """A reason that fits no change any more is out of date."""
    plugin = PLUGINS[name]
    package = Path(str(importlib.import_module(plugin.contract.partition(".")[0]).__file__)).parent
    made = {(package.name, change.where, change.old, change.new) for change in changes(package, plugin.file)}
    assert made
    mine = {key for key in EQUIVALENT if key[0] == package.name}
    others = {
        (package.name, change.where, change.old, change.new)
        for other in PLUGINS.values()
        if other.contract.partition(".")[0] == package.name and other.file != plugin.file
        for change in changes(package, other.file)
    }
    assert mine <= made | others
