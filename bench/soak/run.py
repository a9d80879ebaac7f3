"""Runs the load and the canaries, and watches the server: `soak` returns all that was seen."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from dataclasses import dataclass, field
from random import Random

from bench.soak.connection import send
from bench.soak.tally import Outcome, Tally
from bench.soak.traffic import Planned, canaries, plan
from extensions.server.tests.command import Command
from extensions.server.tests.footprint import MORE, Footprint

IDLE_CANARIES = 40
WARM_UP = 0.15
"""Share of the time after which the footprint is that of a server in use."""
SETTLE_SECONDS = 30.0
STEADY_SECONDS = 3.0
"""What is held has not changed for so long when it is noted: a child that is starting has not all of its own yet."""
MEMORY_SECONDS = 60.0
"""A shorter load says nothing of resident memory: caches and allocators still fill."""


@dataclass
class Report:
    """What was seen; times are seconds since the load began."""

    tally: Tally = field(default_factory=Tally)
    canaries: list[tuple[float, float]] = field(default_factory=list)
    """When each was sent, and its latency; those of the idle server have times below 0."""
    footprints: list[tuple[float, Footprint]] = field(default_factory=list)
    outcomes: list[tuple[float, Outcome]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Outputs of canaries that were not the first one's."""
    surprises: list[str] = field(default_factory=list)
    """Requests that ended as none of their kind may."""
    leaks: list[str] = field(default_factory=list)

    def latencies(self) -> dict[str, tuple[float, float]]:
        """The canaries' median and 99th percentile, without load and under it."""
        idle = [seconds for when, seconds in self.canaries if when < 0]
        loaded = [seconds for when, seconds in self.canaries if when >= 0]
        named = {"idle": idle, "under load": loaded}
        return {name: (statistics.median(values), statistics.quantiles(values, n=100)[98])
                for name, values in named.items() if len(values) > 1}  # fmt: skip

    def problems(self) -> list[str]:
        """What is wrong."""
        found = [f"a canary's output changed: {text!r:.300}" for text in self.changed] + self.surprises + self.leaks
        return found + self.tally.problems(self.footprints[-1][1].requests)


class Soak:
    """One run against one server."""

    def __init__(self, server: Command, seconds: float) -> None:
        url = server.http.base_url
        self.address = (url.host, url.port or 80)
        self.server, self.seconds, self.report = server, seconds, Report()
        self._start = time.monotonic()
        self._known: dict[int, str] = {}

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._start

    async def ask(self, planned: Planned) -> str:
        """Send a request and count it; returns the response."""
        self.report.tally.sent += 1
        outcome, said = await send(self.address, planned.path, planned.body, planned.manner)
        self.report.tally.count(planned.kind, outcome, said)
        self.report.outcomes.append((self.now, outcome))
        if outcome not in planned.expected and outcome != "failed":  # which is counted
            self.report.surprises.append(f"{planned.kind} was {outcome}: {said:.300} {planned.body[:300]!r}")
        return said

    async def ask_canary(self, number: int, planned: Planned, *, is_idle: bool = False) -> None:
        """Send a canary and hold its output against the first one."""
        sent = time.monotonic()
        said = text_of(await self.ask(planned))
        when = -1.0 if is_idle else sent - self._start
        self.report.canaries.append((when, time.monotonic() - sent))
        if said != self._known.setdefault(number, said):
            self.report.changed.append(said)

    async def look(self) -> Footprint:
        """Read and note the footprint."""
        seen = await asyncio.to_thread(Footprint.of, self.server.process.pid, self.server.http)
        self.report.footprints.append((self.now, seen))
        return seen

    async def client(self, rng: Random, until: float) -> None:
        """Send random requests, one after the other."""
        while self.now < until:
            await self.ask(plan(rng))

    async def canary(self, until: float) -> None:
        """Send canaries in turn."""
        while self.now < until:
            for number, planned in enumerate(canaries()):
                await self.ask_canary(number, planned)
                await asyncio.sleep(0.05)

    async def watch(self, until: float) -> None:
        """Note the footprint again and again."""
        while self.now < until:
            await self.look()
            await asyncio.sleep(max(0.5, self.seconds / 300))

    async def load(self, clients: int, rng: Random, until: float) -> None:
        """All of it at once."""
        running = [self.client(Random(rng.random()), until) for _ in range(clients)]
        await asyncio.gather(self.canary(until), self.watch(until), *running)

    async def settled(self, before: Footprint | None) -> Footprint:
        """The footprint once no request is in flight, and nothing is held that was not before."""
        deadline = time.monotonic() + SETTLE_SECONDS
        held, since = tuple[int, ...](), time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            seen = await self.look()
            self.report.leaks = seen.leaks(before or seen, memory=self.seconds >= MEMORY_SECONDS)
            is_counted = not self.report.tally.problems(seen.requests) or bool(self.report.tally.failures)
            if held != (now := tuple(seen.count(what) for what in MORE)):
                held, since = now, time.monotonic()
            is_steady = time.monotonic() > since + STEADY_SECONDS
            if (is_counted and is_steady and not self.report.leaks) or time.monotonic() > deadline:
                return seen


async def soak(server: Command, seconds: float, clients: int, seed: int) -> Report:
    """Run the load for some seconds."""
    run, rng = Soak(server, seconds), Random(seed)
    for index in range(IDLE_CANARIES):
        number = index % len(canaries())
        await run.ask_canary(number, canaries()[number], is_idle=True)
    run._start = time.monotonic()
    await run.load(clients, rng, WARM_UP * seconds)
    before = await run.settled(None)
    await run.load(clients, rng, seconds)
    await run.settled(before)
    return run.report


def text_of(said: str) -> str:
    """The output in a response of a chat, whole or streamed; another response is returned as it is."""
    if "data: " in said:
        deltas = [json.loads(event) for event in re.findall(r"^data: (\{.*\})\r?$", said, re.MULTILINE)]
        return "".join(choice["delta"].get("content") or "" for delta in deltas for choice in delta["choices"])
    found = re.search(r"\{.*\}", said, re.DOTALL)
    body = json.loads(found[0]) if found else {}
    return str(body["choices"][0]["message"]["content"]) if "choices" in body else said
