"""What became of the changes of adapters' sources: kept in `surveyed/`, a file for each family, and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corellm.plugin.contract import CONTRACT
from extensions.testing.tests.mutants.equivalent import EQUIVALENT
from extensions.testing.tests.mutants.harness import hooks_named
from extensions.testing.tests.mutants.systematic import Change

FOLDER = Path(__file__).parent / "surveyed"


@dataclass(frozen=True)
class Outcome:
    """What the contract said of a change."""

    rule: str = ""
    """The first rule that broke; empty if none did."""
    hook: str = ""
    """The hooks that it named; empty where it ended with another error than a rule's."""

    def __str__(self) -> str:
        return f"{self.rule} names {self.hook or 'nothing'}"


class Outcomes:
    """The outcomes of a family's changes, by the changes' names; each is written to the file when it is known.

    Args:
        family: a name of `systematic_survey.FAMILIES`.
        folder: with a file of JSON lines for each family.
    """

    def __init__(self, family: str, folder: Path = FOLDER) -> None:
        self._file = folder / f"{family}.jsonl"
        self._known: dict[str, Outcome] = {}
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                found = json.loads(line)
                self._known[found["name"]] = Outcome(found["rule"], found["hook"])

    def of(self, change: Change) -> Outcome | None:
        """Return what is known of a change."""
        return self._known.get(change.name)

    def add(self, change: Change, outcome: Outcome) -> None:
        """Keep what became of a change."""
        self._known[change.name] = outcome
        self._file.parent.mkdir(exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(self._line(change))

    def tidy(self, changes: Sequence[Change]) -> None:
        """Write the file anew, in the order of the changes, without those that are none any more."""
        lines = [self._line(change) for change in changes if change.name in self._known]
        self._file.write_text("".join(lines), encoding="utf-8")

    def _line(self, change: Change) -> str:
        outcome = self._known[change.name]
        line = {"name": change.name, "change": str(change), "rule": outcome.rule, "hook": outcome.hook}
        return json.dumps(line, ensure_ascii=False) + "\n"


@dataclass
class Tally:
    """A family's changes, counted."""

    caught: int = 0
    hooks: int = 0
    """Changes of hooks among those caught."""
    wrong: list[tuple[Change, Outcome]] = field(default_factory=list)
    """Changes of hooks for which another hook was blamed."""
    equivalent: list[tuple[Change, str]] = field(default_factory=list)
    """With the reasons."""
    unexplained: list[Change] = field(default_factory=list)
    """Neither caught nor equivalent."""
    untried: list[Change] = field(default_factory=list)

    @property
    def told(self) -> int:
        """Changes of hooks that the first broken rule names rightly."""
        return self.hooks - len(self.wrong)

    def __str__(self) -> str:
        tried = f"{self.caught} caught, {len(self.equivalent)} equivalent, {len(self.unexplained)} unexplained"
        return f"{tried}, {len(self.untried)} not tried; {self.told} of {self.hooks} changes of hooks told rightly"


def tally(package: str, changes: Sequence[Change], outcomes: Outcomes) -> Tally:
    """Count the outcomes of the changes of a package's adapter."""
    counted = Tally()
    for change in changes:
        outcome = outcomes.of(change)
        if outcome is None:
            counted.untried.append(change)
        elif outcome.rule:
            counted.caught += 1
            if change.where in CONTRACT.hooks:
                counted.hooks += 1
                if change.where not in hooks_named(outcome.hook):
                    counted.wrong.append((change, outcome))
        elif reason := EQUIVALENT.get((package, change.where, change.old, change.new)):
            counted.equivalent.append((change, reason))
        else:
            counted.unexplained.append(change)
    return counted
