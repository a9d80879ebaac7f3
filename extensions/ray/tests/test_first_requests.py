"""The first requests of new replicas are all answered, however many there are at once, each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.full
def test_ten_times_ten_first_requests(tiny_llava: Path) -> None:
    """As one engine answers, with each of the routers; in a process of its own, which has the cluster."""
    command = [sys.executable, "-m", "extensions.ray.tests.first_requests", str(tiny_llava), "--times", "10"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("10 answers as of one engine") == 10
