"""The shipped demo models, loaded by name, answer every question about the sample images and videos right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_answer_is_right() -> None:
    """`make demo`'s program, which uses the public API only, reports 22 right answers and exits with 0."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "demo" / "show.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "22 of 22 right." in done.stdout
