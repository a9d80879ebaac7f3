"""Tables of the survey of adapters' changes, from what `extensions.testing.tests.mutants` keeps of it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import groupby

from extensions.testing.tests.mutants.surveyed import Outcomes, Tally, tally
from extensions.testing.tests.mutants.systematic_survey import FAMILIES, changes_of, package_of


def table(name: str) -> str:
    """Return one of the tables: `families`, `rules` or `equivalent`.

    Raises:
        KeyError: there is no such table.
    """
    return {"families": _families, "rules": _rules, "equivalent": _equivalent}[name]()


def _families() -> str:
    """Return a table of what became of each family's changes, and their sum."""
    rows = [
        "| adapter | changes | caught | change nothing | not explained | not tried | told rightly |",
        "|---" + "|---:" * 6 + "|",
    ]
    total = Counter[str]()
    for family in FAMILIES:
        counted = _counted(family)
        total.update(_columns(counted))
        rows.append(_row(f"`{family}`", _columns(counted)))
    return "\n".join([*rows, _row("all", total)])


def _columns(counted: Tally) -> dict[str, int]:
    return {
        "caught": counted.caught,
        "equivalent": len(counted.equivalent),
        "unexplained": len(counted.unexplained),
        "untried": len(counted.untried),
        "hooks": counted.hooks,
        "told": counted.told,
    }


def _row(name: str, numbers: dict[str, int]) -> str:
    parts = [numbers[column] for column in ("caught", "equivalent", "unexplained", "untried")]
    told = f"{numbers['told']} of {numbers['hooks']}"
    return f"| {name} | {sum(parts)} | " + " | ".join(map(str, parts)) + f" | {told} |"


def _rules() -> str:
    """Return a table of the rules that were the first to break, and how often."""
    first = Counter[str]()
    for family in FAMILIES:
        outcomes = Outcomes(family)
        found = (outcomes.of(change) for change in changes_of(family))
        first.update(outcome.rule.partition("[")[0] for outcome in found if outcome is not None and outcome.rule)
    rows = [f"| `{rule}` | {count} |" for rule, count in first.most_common()]
    return "\n".join(["| the first rule to break | changes |", "|---|---:|", *rows])


def _equivalent() -> str:
    """Return lists of the changes that change nothing, by family and reason."""
    lines = []
    for family in FAMILIES:
        found = sorted(_counted(family).equivalent, key=lambda one: one[1])
        lines += [f"`{family}`", ""] if found else []
        for reason, those in groupby(found, key=lambda one: one[1]):
            shown = "; ".join(
                f"{change.where}, line {change.line}: {_code(change.old)} → {_code(change.new)}" for change, _ in those
            )
            lines.append(f"- {reason}: {shown}")
        lines.append("")
    return "\n".join(lines)


def _code(text: str) -> str:
    return text if text == "left out" else f"`` {text} ``"  # the text may have backticks


@cache
def _counted(family: str) -> Tally:
    return tally(package_of(family), changes_of(family), Outcomes(family))
