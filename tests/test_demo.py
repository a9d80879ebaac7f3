"""`make demo`'s program: the shipped models, found by name, are right about every sample picture and clip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_answer_is_right() -> None:
    """Files in, words out, nothing between them but what users have; it says so and exits with 0."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "show.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "22 of 22 right." in done.stdout
