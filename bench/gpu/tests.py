"""`pytest tests/kernels` on this machine's device: how many tests passed, and which failed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu.results import Run
from bench.gpu.source_tree import ROOT


def measure(run: Run) -> None:
    """Run the tests; warnings are errors only with the project's own versions, which other machines may not have."""
    what = ["tests/kernels/test_merging.py"] if run.quick else ["tests/kernels", "--ignore=tests/kernels/test_ahead.py"]
    parallel = ["-n", "8"] if importlib.util.find_spec("xdist") and not run.quick else []
    command = [sys.executable, "-m", "pytest", *what, *parallel, "-W", "default", "-rf", "--tb=short", "-v"]
    log = Path(run.out) / "tests.log"
    with log.open("wb") as output:
        left = max(1.0, run.deadline - time.monotonic() - 4)
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=left, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    run.figure("kernel tests", **{name: int(n) for n, name in re.findall(r"(\d+) (passed|failed|skipped)", text)})
    failed = re.findall(r"^FAILED (\S+)", text, re.MULTILINE)
    if failed or " passed" not in text:
        run.failure("kernel tests", ", ".join(failed)[:240] or "no test passed; tests.log says why")
