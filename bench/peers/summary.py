"""Medians over the rounds, and ratios within them: corellm, with as many bits, against each side, figure by figure.

A ratio above 1 says that corellm is ahead: as many times as fast, or that part of the memory. It is formed within each
round, where both ran minutes apart, and the median of the rounds counts. Knows records only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench.peers.results import NEITHER, ColdWarm, Measurement
from bench.peers.sides import OURS_OF_BITS, SIDES
from bench.peers.workloads import better


@dataclass(frozen=True)
class Row:
    """One figure of one side; of a side that failed, only why."""

    size: str
    workload: str
    figure: str
    side: str
    value: ColdWarm
    ratio: ColdWarm
    share: ColdWarm
    """Share of the floor: 1 is as fast as the machine allows."""
    busy: ColdWarm
    rounds: int
    equal: float | None = None
    """Share of the first batch's outputs that begin as corellm's."""
    failure: str | None = None


def rows(measurements: Iterable[Measurement]) -> list[Row]:
    """All of them, grouped by model, workload and figure."""
    groups: dict[tuple[str, str], dict[str, list[Measurement]]] = {}
    for measurement in measurements:
        sides = groups.setdefault((measurement.size, measurement.workload), {})
        sides.setdefault(measurement.side, []).append(measurement)
    found: list[Row] = []
    for (size, workload), sides in groups.items():
        names = dict.fromkeys(name for runs in sides.values() for run in runs for name in run.figures)
        done = {side: [run for run in runs if run.failure is None] for side, runs in sides.items()}
        found += [
            _row(size, workload, figure, side, runs, done.get(compared(side), []))
            for figure in names for side, runs in done.items() if runs
        ]  # fmt: skip
        for side, runs in sides.items():
            if failed := [run for run in runs if run.failure is not None]:
                found.append(
                    Row(size, workload, "", side, NEITHER, NEITHER, NEITHER, NEITHER, len(failed),
                        failure=failed[-1].failure)
                )  # fmt: skip
    return found


def compared(side: str) -> str:
    """Our side that a side is compared with."""
    return OURS_OF_BITS[SIDES[side].bits]


def _row(size: str, workload: str, figure: str, side: str, runs: list[Measurement], ours: list[Measurement]) -> Row:
    by_round = {run.round: run for run in ours}
    pairs = [(by_round[run.round], run) for run in runs if run.round in by_round]
    return Row(
        size, workload, figure, side,
        value=_medians([run.figures.get(figure, NEITHER) for run in runs]),
        ratio=NEITHER if side == compared(side) else _medians([
            _divided(figure, first.figures.get(figure, NEITHER), second.figures.get(figure, NEITHER))
            for first, second in pairs
        ]),
        share=_medians([
            _divided(figure, run.figures.get(figure, NEITHER), dict.fromkeys(NEITHER, run.best.get(figure)))
            for run in runs
        ]),
        busy=_medians([run.busy for run in runs]),
        rounds=len(runs),
        equal=_median(equal_starts(first.starts, second.starts) for first, second in pairs),
    )  # fmt: skip


def _divided(figure: str, ours: ColdWarm, theirs: ColdWarm) -> ColdWarm:
    """How many times as good the first is."""
    more = better(figure) == "more"
    return {name: ratio(ours[name], theirs[name]) if more else ratio(theirs[name], ours[name]) for name in NEITHER}


def ratio(above: float | None, below: float | None) -> float | None:
    """The quotient; None where one of the two is unknown or nothing is below."""
    return None if above is None or not below else above / below


def equal_starts(ours: list[str], theirs: list[str]) -> float | None:
    """The share of texts that are equal; None where there are none."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours) if ours and theirs else None


def _medians(values: list[ColdWarm]) -> ColdWarm:
    return {name: _median(value[name] for value in values) for name in NEITHER}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def by_ratio(found: Iterable[Row], size: str) -> dict[str, dict[str, Row]]:
    """`{workload and figure: {peer: row}}` of one model, of those with a ratio."""
    table: dict[str, dict[str, Row]] = {}
    for row in found:
        if row.size == size and any(value is not None for value in row.ratio.values()):
            table.setdefault(f"{row.workload}  {row.figure}", {})[row.side] = row
    return table
