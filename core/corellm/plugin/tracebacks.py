"""The part of a traceback that a plugin's author needs. Knows file names only."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN_FOLDER = Path(__file__).parent


def own_traceback(error: BaseException) -> str:
    """Return the traceback without the frames that import and call plugins."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_loader(frame.filename)]
    return "".join(traceback.format_list(frames))


def _is_loader(file: str) -> bool:
    return Path(file).parent == _OWN_FOLDER or "/importlib/" in file or file.startswith("<frozen importlib")
