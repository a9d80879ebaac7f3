"""Files that commands write: a wrong name or a missing library is refused before the work."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from corellm.errors import ConfigError, MissingExtraError


def check_writable(path: str | Path) -> None:
    """Do nothing if a file can be written there.

    Raises:
        ConfigError: its directory is missing, or read-only.
    """
    if not os.access(Path(path).absolute().parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: there is no such directory, or it is not writable")


def check_plotting(path: str) -> None:
    """Do nothing if a drawing can be written there.

    Raises:
        ConfigError: the ending is of no known format, or nothing can be written there.
        MissingExtraError: matplotlib is not installed.
    """
    if not path.endswith((".png", ".svg", ".pdf")):
        raise ConfigError(f"--plot writes .png, .svg or .pdf, got {path!r}")
    check_writable(path)
    if find_spec("matplotlib") is None:
        raise MissingExtraError("--plot needs matplotlib; install it: pip install matplotlib")
