"""What may be fetched, and at most how much, how long and how many at once. Knows hosts' patterns, no requests.

What fetches is an extension's: `offer_fetching`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from corellm.errors import ConfigError

_PATTERN = re.compile(r"(?P<host>\*|(?:\*\.)?[a-z0-9_.-]*[a-z0-9_-]|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?", re.ASCII)
_USUAL_PORTS = (80, 443)
_LIMITS: dict[str, Any] = {
    "max_fetch_bytes": int, "fetch_timeout": (int, float), "fetch_connect_timeout": (int, float),
    "max_concurrent_fetches": int,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostPattern:
    """Hosts that may be fetched from: one, the subdomains of one (`*.example.org`), or all (`*`)."""

    host: str
    port: int | None
    """The one port that is allowed; 80 and 443 if None."""

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Read `host`, `*.host` or `*`, each with or without `:port`.

        Raises:
            ConfigError: it is none of these.
        """
        found = _PATTERN.fullmatch(text.strip().lower())
        if found is None or not 0 < int(found["port"] or 80) < 1 << 16:
            raise ConfigError(
                f"allowed_media_domains: {text[:100]!r} is not a host; write example.org, *.example.org, "
                "example.org:8443, or * for all"
            )
        return cls(found["host"].strip("[]"), int(found["port"]) if found["port"] else None)

    def allows(self, host: str, port: int) -> bool:
        """Whether a URL's host and port are among them."""
        if port != self.port if self.port else port not in _USUAL_PORTS:
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*") else host == self.host


@dataclass(frozen=True)
class FetchSettings:
    """Limits of fetching; by default nothing is fetched."""

    allowed_media_domains: Collection[str] = ()
    """Hosts that media may be fetched from: `example.org`, `*.example.org` for its subdomains, `*` for all. Ports are
    80 and 443, or the one of `example.org:8443`. Private addresses are refused whatever is allowed here."""
    max_fetch_bytes: int = 1 << 26
    """Largest file that is fetched."""
    fetch_timeout: float = 30.0
    """Seconds that one file may take, redirects and waiting for other downloads included."""
    fetch_connect_timeout: float = 5.0
    """Seconds that connecting to one address may take."""
    max_concurrent_fetches: int = 16
    """Downloads at the same time; others wait. They hold at most this times `max_fetch_bytes`."""

    def __post_init__(self) -> None:
        given: Any = self.allowed_media_domains
        is_list = isinstance(given, Collection) and not isinstance(given, (str, bytes, Mapping))
        if not is_list or not all(isinstance(host, str) for host in given):
            raise ConfigError(f"allowed_media_domains must be a list of hosts, got {given!r:.100}")
        for name, kinds in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= sys.float_info.max:
                kind = "integer" if kinds is int else "number"
                raise ConfigError(f"{name} must be a positive {kind}, got {value!r:.100}")
        self.patterns()

    @property
    def fetching_threads(self) -> int:
        """Threads that may wait for downloads at once, each for one; 0 where nothing is fetched."""
        return self.max_concurrent_fetches if self.allowed_media_domains else 0

    def patterns(self) -> tuple[HostPattern, ...]:
        """`allowed_media_domains`, parsed."""
        return tuple(map(HostPattern.parse, self.allowed_media_domains))
