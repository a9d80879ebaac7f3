"""What media to try a script with have in common: a name, from which they are drawn, and files of this process."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from corellm.errors import InvalidParameterError
from corellm_vllm.absent.exports import exports


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="corellm-assets-")


def written(name: str, content: bytes) -> Path:
    """Return a file with the content, which is deleted when the process ends."""
    path = Path(_folder().name) / name
    path.write_bytes(content)
    return path


def generator(name: str) -> np.random.Generator:
    """Return numbers that follow from a name."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def check_name(kind: str, name: object) -> str:
    """Return a name.

    Raises:
        InvalidParameterError: it is no text, or is a path.
    """
    if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
        raise InvalidParameterError(
            f"{kind} is drawn from a plain name, like 'stop_sign', got {name!r:.60}; open your own files "
            "with Pillow, or give their paths in prompts",
            param="name",
        )
    return name


__all__ = ["check_name", "generator", "written"]
__getattr__ = exports(__name__)
