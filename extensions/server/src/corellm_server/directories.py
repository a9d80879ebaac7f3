"""Directories that clients name, below one of the operator's. Knows paths; what files hold, others know."""

from __future__ import annotations

from pathlib import Path


def directory_below(root: Path, given: str) -> Path | None:
    """Return a directory below another, none of whose files is elsewhere; None if it is not there.

    Args:
        root: the operator's directory, resolved.
        given: a path, from that directory on.

    Returns:
        None also for paths elsewhere: whether they are there is not told.
    """
    try:
        folder = (root / given).resolve()
        if not folder.is_relative_to(root) or not folder.is_dir():
            return None
        is_whole = all(path.resolve().is_relative_to(root) for path in folder.rglob("*"))
    except (OSError, ValueError, RuntimeError):  # also loops of links, and names that no file can have
        return None
    return folder if is_whole else None
