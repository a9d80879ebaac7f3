"""The table on the terminal: each figure of each side, cold and warm, its ratio, its share of the floor; failures last.

Knows rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from bench.peers.summary import Row

if TYPE_CHECKING:
    from rich.console import RenderableType

LEGEND = (
    "ratio: corellm with as many bits against that side within each round, median of all; above 1 corellm is ahead.  "
    "floor: the least time this machine allows, as a share of the measured one.  busy: share of the cores' time.  "
    "equal: outputs of the first batch that begin as corellm's.  cold: first batch after loading; warm: later ones."
)


def table(rows: Sequence[Row], title: str) -> list[RenderableType]:
    """What to print, one table for each model."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown: list[RenderableType] = []
    for size, of_size in groupby(rows, key=lambda row: row.size):
        drawn = Table(title=f"{size}: {title}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for column in ("", "figure", "side"):
            drawn.add_column(column, no_wrap=True)
        for column in ("cold", "warm", "ratio cold", "ratio warm", "floor cold", "floor warm", "busy", "equal"):
            drawn.add_column(column, justify="right")
        for (workload, figure), group in groupby(
            [row for row in of_size if row.failure is None], key=lambda row: (row.workload, row.figure)
        ):
            for i, row in enumerate(group):
                drawn.add_row(*(("", "") if i else (workload, figure)), *_cells(row))
        shown.append(drawn)
    failed = [row for row in rows if row.failure is not None]
    shown += [f"FAILED {row.size} {row.workload} {row.side}: {row.failure}" for row in failed]
    return [*shown, LEGEND]


def _cells(row: Row) -> list[str]:
    best = max((value for value in row.ratio.values() if value is not None), default=None)
    colour = "" if best is None or row.ratio["warm"] is None else "green" if row.ratio["warm"] >= 1 else "red"
    ratios = [_number(row.ratio[name], "x") for name in ("cold", "warm")]
    if colour:
        ratios[1] = f"[{colour}]{ratios[1]}[/]"
    return [
        row.side, _number(row.value["cold"]), _number(row.value["warm"]), *ratios,
        _percent(row.share["cold"]), _percent(row.share["warm"]),
        _percent(row.busy["warm"] if row.busy["warm"] is not None else row.busy["cold"]), _percent(row.equal),
    ]  # fmt: skip


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:.2f}{unit}" if unit or value < 10 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
