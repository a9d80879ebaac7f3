"""The sources that the machine code of GPU kernels is made of, besides Triton's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import corellm_kernels

_HERE = Path(__file__).parent


def digest_of_sources() -> str:
    """Return a digest of the kernels, of the launches and of what compiles them."""
    package = Path(corellm_kernels.__file__).parent
    files = [*sorted((package / "gpu").glob("*.py")), package / "logit_edits.py"]
    files += [_HERE / "launches.py", _HERE / "ahead.py"]
    parts = (f"{file.name}\0".encode() + file.read_bytes() for file in files)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]
