"""Runs the contract on every change of an adapter's source: `python -m tests.mutants.systematic_survey [FAMILY ...]`.

A change is caught if a rule breaks. It is told rightly if the first rule that breaks names the hook that was changed;
changes of helpers and of class attributes are not counted there. What no rule catches is listed, but for the changes
that `equivalent` explains. It takes some five seconds for each change, and minutes for one that is not caught.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import importlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import transformers
from rich.progress import track

from corellm.plugin.contract import CONTRACT
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.harness import Verdict, examine, hooks_named
from tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN3, QWEN_VL, Plugin
from tests.mutants.systematic import Change, changes

PLUGINS = {"llava": LLAVA, "fuyu": FUYU, "blip2": BLIP2, "qwen2": QWEN2, "qwen3": QWEN3, "qwen-vl": QWEN_VL,
           "qwen-audio": AUDIO}  # fmt: skip


@dataclass
class Tally:
    """What became of a family's changes."""

    caught: int = 0
    hooks: int = 0
    """Of those caught, changes of hooks."""
    told: int = 0
    """Of those, told rightly."""
    equivalent: int = 0
    survived: list[Change] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Changes of hooks that a rule caught and another hook was blamed for."""

    def add(self, change: Change, verdict: Verdict, reason: str | None) -> None:
        """Count one change."""
        broken = next(iter(verdict.caught.values()), None)
        if broken is None and not verdict.crashed and not verdict.not_run:
            if reason is None:
                self.survived.append(change)
            self.equivalent += reason is not None
            return
        self.caught += 1
        if change.where in CONTRACT.hooks:
            self.hooks += 1
            blamed = hooks_named(broken) if broken is not None else set()
            self.told += change.where in blamed
            if change.where not in blamed:
                said = broken.hook if broken is not None else next(iter(verdict.crashed or verdict.not_run))
                self.wrong.append(f"{change}: {said}")


def survey(plugin: Plugin) -> Tally:
    """Run the contract on each change of a plugin's file."""
    package = Path(str(importlib.import_module(plugin.contract.partition(".")[0]).__file__)).parent
    tally = Tally()
    for change in track([*changes(package, plugin.file)], plugin.contract.rpartition("::")[2]):
        reason = EQUIVALENT.get((package.name, change.where, change.old, change.new))
        with tempfile.TemporaryDirectory() as where:
            tally.add(change, examine(plugin.contract, (), Path(where), change, first=True), reason)
    return tally


def main(names: Sequence[str]) -> int:
    """Print the tally of each family; return 1 if a change that nothing explains is not caught."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    unexplained = 0
    for name in names or PLUGINS:
        tally = survey(PLUGINS[name])
        print(
            f"{name}: {tally.caught} caught, {tally.equivalent} equivalent, {len(tally.survived)} unexplained; "
            f"{tally.told} of {tally.hooks} changes of hooks told rightly"
        )
        print(*(f"  not caught: {change}" for change in tally.survived), sep="\n")
        print(*(f"  blamed on another: {line}" for line in tally.wrong), sep="\n", flush=True)
        unexplained += len(tally.survived)
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
