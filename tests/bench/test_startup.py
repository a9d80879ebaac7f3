"""The benchmark of starts measures a process from its start, and splits import times by package."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import startup


def test_figures_of_a_process(tiny_llava: Path) -> None:
    """Its first token comes after its CPU time began, and it takes memory."""
    command = [sys.executable, startup.__file__, "--serve", f"{time.monotonic()}", str(tiny_llava), "auto"]
    done = subprocess.run([*command, "--first-token"], stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout)
    assert figures["process start to first token, s"] > 0
    assert figures["the same in CPU time, s"] > 0
    assert figures["idle memory, MB"] > 0


def test_imports_by_package() -> None:
    """A package's modules are added up, whatever was printed between."""
    log = [
        "import time: self [us] | cumulative | imported package",
        "import time:   1000000 |    1000000 |   torch._C",
        "Loading weights",
        "import time:    500000 |    1500000 | torch",
        "import time:    250000 |     250000 |     transformers.utils",
    ]
    assert startup.importing_seconds(log) == pytest.approx({"torch": 1.5, "transformers": 0.25})
