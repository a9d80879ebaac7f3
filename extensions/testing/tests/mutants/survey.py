"""Runs the whole contract on every mutant and prints which rule catches it first: `make mutants`.

Before them come their plugins' unchanged copies, which must keep every rule. A mutant is told rightly where the first
rule that it breaks, which its author reads first, names a hook with the mistake.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import transformers

from corellm_testing import AdapterContract
from corellm_testing.rules import rules_of
from extensions.testing.tests.mutants.harness import Verdict, examine
from extensions.testing.tests.mutants.mutant import Mutant
from extensions.testing.tests.mutants.mutants import MUTANTS


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a mutant escapes, or a rule ends with another error or breaks without a mutant.

    Prints the results meanwhile.
    """
    parser = argparse.ArgumentParser(description="Run the whole contract on every mutant.")
    parser.add_argument("words", nargs="*", help="of what is wrong with a mutant: only those that have one")
    parser.add_argument("--all", action="store_true", help="run the rules after the first broken one, too, and count")
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = [mutant for mutant in MUTANTS if not options.words or any(word in mutant.wrong for word in options.words)]
    catches, faults = Counter[str](), 0
    of_family, caught, told = Counter[str](), Counter[str](), Counter[str]()
    for contract in dict.fromkeys(mutant.contract for mutant in chosen):
        with tempfile.TemporaryDirectory() as where:
            verdict = examine(contract, (), Path(where))
        if broken := {**verdict.caught, **verdict.crashed, **verdict.not_run}:
            print(f"{contract}, unchanged: {verdict}", flush=True)
        faults += bool(broken)
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as where:
            verdict = examine(mutant.contract, (), Path(where), mutant, first=not options.all)
        escaped = verdict.broken(mutant.rule) is None if options.all else not verdict.caught
        print(_told(mutant, verdict), *["  ! it escapes"] * escaped, sep="\n", flush=True)
        catches.update({rule.partition("[")[0] for rule in verdict.caught})
        of_family[mutant.family] += 1
        caught[mutant.family] += bool(verdict.caught)
        told[mutant.family] += verdict.tells(mutant)
        faults += escaped or bool(verdict.crashed)
    print("\nmutants of each family, how many are caught, and how many of them are told rightly:")
    for family, count in of_family.items():
        print(f"  {family:<11} {count:4} mutants {caught[family]:4} caught {told[family]:4} told rightly")
    print(f"\n{len(chosen)} mutants; of each rule, how many it caught{'' if options.all else ' first'}:")
    for rule in rules_of(AdapterContract):
        print(f"  {catches[rule]:4} {rule}")
    print(
        f"{faults} mutants escaped or met a rule that did not say what is wrong, or copies without a mistake broke one"
    )
    return int(faults > 0)


def _told(mutant: Mutant, verdict: Verdict) -> str:
    lines = [f"{mutant.family}: {mutant.wrong}: {len(verdict.caught)} rules, {len(verdict.not_run)} not run"]
    lines += [
        f"  {'>' if rule == mutant.rule else ' '} {rule}: {broken.hook}" for rule, broken in verdict.caught.items()
    ]
    lines += [f"  ! {rule}: {trace.strip().splitlines()[-1]}" for rule, trace in verdict.crashed.items()]
    if not verdict.tells(mutant):
        lines.append(f"  ? the mistake is in {', '.join(mutant.hooks)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
