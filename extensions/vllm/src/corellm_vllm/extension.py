"""What corellm lists of this distribution. It adds nothing to an engine, so it has no hooks."""

from __future__ import annotations


class Names:
    """The names of another engine; `corellm plugins` shows that they are installed."""
