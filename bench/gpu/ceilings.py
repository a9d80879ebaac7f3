"""The machine's own limits, measured before all else: what a copy moves, what a large matrix product computes."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from importlib import metadata

import torch

from bench.gpu.settings import Settings
from bench.gpu.timing import timed

PART = "ceilings"


def measure(settings: Settings) -> None:
    """Record both, and what the machine is."""
    records, device = settings.records, torch.device(settings.device)
    if settings.on_gpu and not torch.cuda.is_available():
        sys.exit("torch sees no NVIDIA GPU here; `--device cpu --quick` shows that the benchmark runs, without one")
    records.figure(PART, "machine", **_machine(device))
    with records.guard(PART, "copy"):
        records.figure(PART, "copy", gb_per_s=copy_rate(device, quick=settings.quick) / 1e9)
    with records.guard(PART, "matmul"):
        records.figure(PART, "matmul", tflop_per_s=matmul_rate(device, quick=settings.quick) / 1e12)


def copy_rate(device: torch.device, *, quick: bool = False) -> float:
    """Bytes per second of a copy within the device, those read and those written; of random bytes."""
    size = 2**24 if quick else 2**32
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * size / (1e-3 * timed([lambda: target.copy_(source)], device).ms)


def matmul_rate(device: torch.device, *, quick: bool = False) -> float:
    """FLOPs per second of a product of random matrices in bfloat16."""
    size = 256 if quick else 8192
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * size**3 / (1e-3 * timed([lambda: a @ b], device, warm_up=4).ms)


def bytes_per_second(settings: Settings) -> float:
    """The copy's rate that was recorded, as the floor of everything that memory bounds."""
    return 1e9 * _recorded(settings, "copy", "gb_per_s")


def flops_per_second(settings: Settings) -> float:
    """The product's rate that was recorded."""
    return 1e12 * _recorded(settings, "matmul", "tflop_per_s")


def _recorded(settings: Settings, case: str, name: str) -> float:
    found = [r for r in settings.records.read() if (r.kind, r.part, r.case) == ("figure", PART, case)]
    if not found:
        raise LookupError(f"the ceiling {case!r} was not measured")
    return float(found[-1].values[name])


def _machine(device: torch.device) -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "triton", "transformers")}
    versions = {"python": platform.python_version(), **packages}
    if device.type != "cuda":
        return {"device": "cpu, in Triton's interpreter", **versions}
    machine = {"device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda), **versions}
    if shutil.which("nvidia-smi"):
        query = "driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
        asked = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        machine["nvidia_smi"] = asked.stdout.strip()
    return machine
