"""Counts what became of every request, as clients see it, and holds it against the server's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

Outcome = Literal["completed", "refused", "aborted", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "refused", "aborted", "failed")
"""Whole; refused as the client's error; left by the client; anything else."""


class Tally:
    """Requests by kind and outcome."""

    def __init__(self) -> None:
        self.sent = 0
        self.counts: Counter[tuple[str, Outcome]] = Counter()
        self.failures: Counter[str] = Counter()
        """What failed, by the text of it."""

    def count(self, kind: str, outcome: Outcome, detail: str) -> None:
        """Count a request that ended."""
        self.counts[kind, outcome] += 1
        if outcome == "failed":
            self.failures[f"{kind}: {detail}"] += 1

    def of(self, outcome: Outcome) -> int:
        """Requests that ended so."""
        return sum(count for (_, ended), count in self.counts.items() if ended == outcome)

    def problems(self, server: Mapping[tuple[str, str], float]) -> list[str]:
        """What does not add up; `server` has requests by route and outcome.

        A client that leaves does not know whether its response was complete by then: the server does.
        """
        seen: Counter[str] = Counter()
        for (route, outcome), count in server.items():
            if route not in ("/metrics", "/health", "/ready"):
                seen[outcome] += int(count)
        found = [f"{count} x {detail}" for detail, count in self.failures.items()]
        pairs = {
            "sent": (self.sent, sum(map(self.of, OUTCOMES))),
            "of all": (self.sent, sum(seen.values())),
            "refused": (self.of("refused"), seen["client_error"]),
            "completed or aborted": (self.of("completed") + self.of("aborted"), seen["ok"] + seen["aborted"]),
            "failed": (self.of("failed"), seen["server_error"] + seen["unavailable"]),
        }
        found += [f"{name}: {ours} here, {theirs} there" for name, (ours, theirs) in pairs.items() if ours != theirs]
        if seen["ok"] < self.of("completed"):
            found.append(f"{self.of('completed')} completed, {seen['ok']} for the server")
        return found

    def __str__(self) -> str:
        kinds = sorted({kind for kind, _ in self.counts})
        rows = [f"{'':16}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
        rows += [f"{kind:16}" + "".join(f"{self.counts[kind, o]:>11}" for o in OUTCOMES) for kind in kinds]
        rows.append(f"{self.sent:<6} requests" + "".join(f"{self.of(outcome):>11}" for outcome in OUTCOMES))
        return "\n".join(rows)
