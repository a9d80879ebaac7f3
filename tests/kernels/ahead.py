"""Compiles every launch of `launches.py` ahead of time, for GPUs that need not be there, and tells what it takes.

    python -m tests.kernels.ahead            # a table
    python -m tests.kernels.ahead --keep     # write resources.json, with which the test compares

Launchers are run as they are, on tensors of the CPU, with Triton's driver replaced by one that names a GPU: what is
compiled has the constants, specializations, warps and stages that a launch has. Registers and bytes of local memory
(spills and arrays) are read from the machine code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tests.kernels.sources import digest_of_sources

CAPABILITIES = (80, 90)
KEPT = Path(__file__).with_name("resources.json")
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class _Driver:
    """A driver without a device."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return self._target.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def compile_launches() -> dict[str, dict[str, dict[str, int]]]:
    """`{launch, kernel and capability: {registers, local bytes, shared bytes}}`, for all launches."""
    from tests.kernels.launches import LAUNCHES, NEEDS_90

    assert os.environ.get("TRITON_INTERPRET", "0") == "0", "interpreted kernels are not compiled"

    compiled: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        compiled.append((self.__name__, kernel))
        return kernel

    JITFunction.run = compile_only
    found: dict[str, dict[str, dict[str, int]]] = {}
    for capability in CAPABILITIES:
        triton.runtime.driver.set_active(_Driver(capability))
        for name, launch in LAUNCHES.items():
            if name in NEEDS_90 and capability < 90:
                continue
            compiled.clear()
            launch()
            for kernel_name, kernel in compiled:
                entry = found.setdefault(f"{name}: {kernel_name}", {})
                used = {**_resources(kernel.asm["cubin"]), "shared": kernel.metadata.shared}
                before = entry.get(f"sm_{capability}", used)  # a kernel may be launched twice, in two variants
                entry[f"sm_{capability}"] = {resource: max(used[resource], before[resource]) for resource in used}
    return found


def _resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [_CUOBJDUMP, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    numbers = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told)}
    return {"registers": numbers["REG"], "local": numbers["STACK"] + numbers["LOCAL"]}


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write resources.json")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    found = compile_launches()
    if args.keep:
        kept = {"sources": digest_of_sources(), "launches": found}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if args.json:
        json.dump(found, sys.stdout)
        return
    for name, entry in found.items():
        print(
            name,
            *(
                f"{arch} {used['registers']} registers, {used['local']} local, {used['shared']} shared;"
                for arch, used in entry.items()
            ),
        )


if __name__ == "__main__":
    main()
