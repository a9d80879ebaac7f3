"""Imports of optional libraries: a missing one is an error with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from corellm.errors import MissingExtraError


@contextmanager
def needs_extra(user: str, extra: str) -> Iterator[None]:
    """Import an extra's libraries inside the block.

    Args:
        user: what needs them, for the error.
        extra: of corellm.

    Raises:
        MissingExtraError: one is not installed.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("corellm", ""):
            raise
        raise MissingExtraError(
            f"{user} needs {error.name}; install the extra {extra!r}, from a checkout: pip install '.[{extra}]'"
        ) from error
