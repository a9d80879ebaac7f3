"""Runs the contract on every change of an adapter's source: `make changes`.

A change is caught if a rule breaks. It is told rightly if the first rule that breaks names the hook that was changed;
changes of helpers and of class attributes are not counted there. What no rule catches is listed, but for the changes
that `equivalent` explains. It takes some ten seconds for each change, and a minute or two for one that is not caught.

What became of each is kept in `surveyed/`, from which the documentation has its tables. Changes that were caught, or
are explained, are not tried again while the function around them is the same, unless `--again` asks for it: an
interrupted survey goes on. Several families can be surveyed beside each other, each by a process of its own.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import transformers
from rich.progress import track

from extensions.testing.tests.mutants.harness import examine
from extensions.testing.tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN2_5, QWEN3, QWEN_VL, Plugin
from extensions.testing.tests.mutants.surveyed import Outcome, Outcomes, Tally, tally
from extensions.testing.tests.mutants.systematic import Change, changes

FAMILIES: dict[str, tuple[Plugin, ...]] = {
    "llava": (LLAVA,),
    "fuyu": (FUYU,),
    "blip2": (BLIP2,),
    "qwen2": (QWEN2, QWEN2_5, QWEN3),  # it inherits from theirs
    "qwen3": (QWEN3,),
    "qwen-vl": (QWEN_VL,),
    "qwen-audio": (AUDIO,),
}
"""By name: the adapter's file, under each contract class that tests it."""


def package_of(family: str) -> str:
    """Return the name of a family's package."""
    return FAMILIES[family][0].package


def changes_of(family: str) -> list[Change]:
    """Return every change of a family's adapter."""
    package = importlib.import_module(package_of(family))
    return [*changes(Path(str(package.__file__)).parent, FAMILIES[family][0].file)]


def survey(family: str, *, again: bool) -> None:
    """Try each change of a family that is neither known to be caught nor explained, or every one; keep the outcome."""
    outcomes, every = Outcomes(family), changes_of(family)
    counted = tally(package_of(family), every, outcomes)
    for change in track(every if again else [*counted.unexplained, *counted.untried], family):
        outcomes.add(change, _try(family, change))
    outcomes.tidy(every)


def _try(family: str, change: Change) -> Outcome:
    """Run the contract classes of a family until one catches the change."""
    for plugin in FAMILIES[family]:
        with tempfile.TemporaryDirectory() as where:
            verdict = examine(plugin.contract, (), Path(where), change, first=True)
        for rule in (*verdict.caught, *verdict.crashed, *verdict.not_run):
            return Outcome(rule, verdict.caught[rule].hook if rule in verdict.caught else "")
    return Outcome()


def report(family: str, counted: Tally) -> Iterator[str]:
    """Yield the lines that tell what became of a family's changes."""
    yield f"{family}: {counted}"
    yield from (f"  not caught: {change}" for change in counted.unexplained)
    yield from (f"  blamed on another: {change}: {outcome}" for change, outcome in counted.wrong)


def main(arguments: Sequence[str]) -> int:
    """Print what became of each family's changes; return 1 if one that nothing explains is not caught."""
    parser = argparse.ArgumentParser(
        prog="python -m extensions.testing.tests.mutants.systematic_survey",
        description="Runs the contract on every change of adapters.",
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"which (default: all): {', '.join(FAMILIES)}")
    parser.add_argument("--again", action="store_true", help="try those that are known to be caught or explained, too")
    parser.add_argument("--report", action="store_true", help="try nothing, print what is known")
    options = parser.parse_args(arguments)
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"no such family: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loose = 0
    for family in options.families or FAMILIES:
        if not options.report:
            survey(family, again=options.again)
        counted = tally(package_of(family), changes_of(family), Outcomes(family))
        print(*report(family, counted), sep="\n", flush=True)
        loose += len(counted.unexplained) + len(counted.untried)
    return int(loose > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
