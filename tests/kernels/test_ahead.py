"""Every kernel compiles for compute capability 8.0 and 9.0, within the registers and spills it is known to need.

Compiling all launches takes minutes on a slow machine, and gives the same for the same sources: they are compiled where
the sources are not those of `resources.json`, and with `-m full`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from tests.kernels.sources import digest_of_sources

KEPT_WITH = "3.7.1"
KEPT = json.loads(Path(__file__).with_name("resources.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.skipif(
    triton.__version__ != KEPT_WITH, reason=f"registers are those of Triton {KEPT_WITH}'s compiler"
)


def test_changed_kernels_compile_within_their_resources() -> None:
    if digest_of_sources() != KEPT["sources"]:
        _compile()


@pytest.mark.full
def test_kernels_compile_within_their_resources() -> None:
    _compile()


def _compile() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    told = subprocess.run(
        [sys.executable, "-m", "tests.kernels.ahead", "--json"], capture_output=True, text=True, env=environment
    )
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout)
    kept = KEPT["launches"]
    assert found.keys() == kept.keys(), "launches were added or removed: python -m tests.kernels.ahead --keep"
    worse = [
        f"{name} on {arch}: {resource} {used[resource]}, known to need {kept[name][arch][resource]}"
        for name, entry in found.items()
        for arch, used in entry.items()
        for resource in ("registers", "local")
        if used[resource] > kept[name][arch][resource]
    ]
    assert not worse, "\n".join(worse)
