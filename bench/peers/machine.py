"""What this machine can do: bytes it reads and operations it does in a second, with all threads; best of several.

python -m bench.peers.machine DTYPE THREADS FILE
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch


def main(dtype: str, threads: int, file: Path) -> None:
    """Measure and write; for bfloat16 the faster of it and float32 counts."""
    torch.set_num_threads(threads)
    data = torch.ones(1 << 28)
    bytes_per_s = data.nbytes / _seconds(data.sum)
    rates = {name: _rate(getattr(torch, name)) for name in {"float32", dtype}}
    found = {"bytes_per_s": bytes_per_s, "flops_per_s": max(rates.values()), "rates": rates}
    file.write_text(json.dumps(found), encoding="utf-8")


def _rate(dtype: torch.dtype) -> float:
    """Rate of a product of 2048 x 2048, or smaller where the CPU has no instructions for the type and takes minutes."""
    for side in (256, 512, 1024, 2048):
        a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
        seconds = _seconds(partial(torch.mm, a, b))
        if seconds > 0.1:
            break
    return 2 * side**3 / seconds


def _seconds(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
