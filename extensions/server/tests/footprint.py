"""What a server holds, read from outside: its metrics, and its processes' descriptors, threads and memory.

The one place that says what a leak is. Compares two moments at which no request is in flight; knows Linux's /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from corellm.children.memory import KEPT_BYTES
from extensions.server.tests.command import children, cmdline

ZERO_AT_REST = (
    "corellm:num_requests_running", "corellm:num_requests_waiting", "corellm:num_requests_swapped",
    "corellm:kv_cache_usage_perc", "corellm:encoder_cache_usage_perc",
)  # fmt: skip
"""Free blocks are all blocks, and no item's encoder output is referenced, exactly when these are 0."""
MORE = {"threads": 12, "descriptors": 8, "children": 4, "memfds": 3}
"""Pools of threads and of child processes grow when they are first needed, and the memory of an item may stay until the
next one: up to so much is no leak."""
GROWTH, SMALLEST = 0.05, 24 << 20
"""Resident memory may grow by this share, or by this many bytes: allocators keep some."""
PER_CHILD = {"descriptors": 9, "memfds": 3}
"""A child that renders or decodes has so many, the server's ends included; the server may also keep `KEPT_BYTES` of
memory that it shares with the child."""
_KINDS = {b"engine_main": "engine", b"templates.worker": "templates", b"media.worker": "media"}


@dataclass(frozen=True)
class ProcessFootprint:
    """What one process holds."""

    kind: str
    resident: int
    """Bytes of its own: mapped files do not count."""
    shared: int
    """Bytes of memory that processes share."""
    peak: int
    """The most bytes it ever had, mapped files included."""
    descriptors: int
    memfds: int
    """Descriptors and mappings of memory that processes share."""
    threads: int

    @classmethod
    def of(cls, pid: int, kind: str) -> ProcessFootprint:
        """Read it from /proc."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = list(_links(Path(f"/proc/{pid}/fd")))
        mapped = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
        return cls(
            kind,
            *(int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem", "VmHWM")),
            len(files),
            mapped + sum(name.startswith("/memfd:") for name in files),
            int(status["Threads"]),
        )


@dataclass(frozen=True)
class Footprint:
    """What a server and all its processes hold at one moment."""

    processes: dict[int, ProcessFootprint]
    metrics: dict[str, float]
    """By name; values of several labels are added."""
    requests: dict[tuple[str, str], float]
    """Requests of each route and outcome."""

    @classmethod
    def of(cls, pid: int, client: httpx.Client) -> Footprint:
        """Read it; `client` has the server's URL."""
        processes = {pid: ProcessFootprint.of(pid, "server")}
        for child in _descendants(pid):
            try:
                line = cmdline(child)
                kind = next((name for word, name in _KINDS.items() if word in line), "other")
                processes[child] = ProcessFootprint.of(child, kind)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue  # it ended
        metrics: dict[str, float] = {}
        requests: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                metrics[sample.name] = metrics.get(sample.name, 0) + sample.value
                if sample.name == "corellm:requests_total":
                    requests[sample.labels["route"], sample.labels["outcome"]] = sample.value
        return cls(processes, metrics, requests)

    def resident(self, kind: str) -> int:
        """Bytes that are no mapped file, in all processes of a kind."""
        return sum(held.resident + held.shared for held in self.processes.values() if held.kind == kind)

    @property
    def num_sharing(self) -> int:
        """Children that share memory with the server."""
        return sum(held.kind in ("templates", "media") for held in self.processes.values())

    def count(self, what: str) -> int:
        """Threads, descriptors, memfds of all processes, or their number but the first (children)."""
        if what == "children":
            return len(self.processes) - 1
        return sum(getattr(process, what) for process in self.processes.values())

    def leaks(self, before: Footprint, *, memory: bool = True) -> list[str]:
        """What is held and was not before; nothing, if all is well.

        Args:
            before: an earlier moment.
            memory: look at resident memory, too: what allocators keep of few requests says nothing.
        """
        found = [f"{name} is {self.metrics[name]:g}" for name in ZERO_AT_REST if self.metrics[name]]
        new_children = max(0, self.num_sharing - before.num_sharing)
        for what, more in MORE.items():
            allowed = more + PER_CHILD.get(what, 0) * new_children
            if self.count(what) > before.count(what) + allowed:
                found.append(f"{what}: {self.count(what)}, {before.count(what)} before")
        for kind in ("server", "engine") if memory else ():
            now, then = self.resident(kind), before.resident(kind)
            kept = KEPT_BYTES * self.num_sharing if kind == "server" else 0
            if now > then + max(GROWTH * then, SMALLEST) + kept:
                found.append(f"resident memory of the {kind}: {now >> 20} MiB, {then >> 20} before")
        return found


def assert_no_leak(
    pid: int, client: httpx.Client, before: Footprint, seconds: float = 600.0, *, memory: bool = False
) -> None:
    """Return once the server holds no more than before; fail if it still does after some seconds."""
    deadline = time.monotonic() + seconds
    while leaks := Footprint.of(pid, client).leaks(before, memory=memory):
        assert time.monotonic() < deadline, leaks
        time.sleep(0.1)


def _descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _descendants(child)


def _links(folder: Path) -> Iterator[str]:
    for file in folder.iterdir():
        try:
            yield os.readlink(file)
        except FileNotFoundError:
            continue  # closed meanwhile
