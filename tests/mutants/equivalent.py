"""Changes of an adapter's source that change nothing a user could see, and why."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
"""By package, function, old and new code, as `systematic.Change` has them."""
