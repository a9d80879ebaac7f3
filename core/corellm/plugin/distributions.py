"""The installed distribution that an entry point belongs to. Knows metadata only."""

from __future__ import annotations

from importlib.metadata import EntryPoint


def distribution_of(entry_point: EntryPoint) -> tuple[str, str]:
    """Return the name and the version of the distribution; the entry point's value and `?` where there is none."""
    dist = entry_point.dist
    return (dist.name, dist.version) if dist is not None else (entry_point.value, "?")
