"""What was measured, as plain records in `peers.json`, which is written again after each: a run that is stopped loses
nothing of what it measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ColdWarm = dict[str, float | None]
"""`{"cold": ..., "warm": ...}`"""
NEITHER: ColdWarm = {"cold": None, "warm": None}


@dataclass(frozen=True)
class Measurement:
    """One process: a workload of a model on one side, in one round."""

    round: int
    size: str
    workload: str
    side: str
    figures: dict[str, ColdWarm] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    """What figures would be at the floor of this round's machine."""
    busy: ColdWarm = field(default_factory=lambda: dict(NEITHER))
    """Share of the cores' time."""
    starts: list[str] = field(default_factory=list)
    """How the outputs of the first batch begin."""
    failure: str | None = None


@dataclass
class Results:
    """A run's settings, the machine's rates in each round, and all measurements."""

    settings: dict[str, Any]
    machine: list[dict[str, Any]] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """Replace the file."""
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        unfinished.replace(file)

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read it again."""
        values = json.loads(file.read_text(encoding="utf-8"))
        values["measurements"] = [Measurement(**measurement) for measurement in values["measurements"]]
        return cls(**values)
