"""The GPU's own limits, measured before all else: bytes a copy moves, operations a large matrix product does."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import torch

from bench.gpu.results import Run
from bench.gpu.timing import milliseconds


def measure(run: Run) -> None:
    """Record both, and what the machine is."""
    if run.device_type == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no NVIDIA GPU here; `--device cpu --quick` shows that the benchmark runs without one")
    gpu = torch.cuda.get_device_name() if run.device_type == "cuda" else "cpu, in Triton's interpreter"
    versions = {name: metadata.version(name) for name in ("torch", "triton", "transformers")}
    run.figure("machine", device=gpu, python=platform.python_version(), **versions)
    size = 2**24 if run.quick else 2**32
    source = torch.empty(size, dtype=torch.uint8, device=run.device).random_()
    target = torch.empty_like(source)
    run.figure("copy", per_second=2e3 * size / milliseconds(run, lambda: target.copy_(source)))
    side = 256 if run.quick else 8192
    a, b = (torch.randn(side, side, device=run.device).to(torch.bfloat16) for _ in range(2))
    run.figure("matmul", per_second=2e3 * side**3 / milliseconds(run, lambda: a @ b))
