"""How long a call on the device takes, and whether it computes what its reference does."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu.results import Run

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""Relative errors of a kernel against its reference, by the type of its inputs."""


def milliseconds(run: Run, call: Callable[[], object]) -> float:
    """Median time of a call; on a GPU with an L2 cache that is emptied before each."""
    call()
    if run.device_type == "cuda":
        from triton.testing import do_bench

        return float(do_bench(call, return_mode="median"))
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def check(ours: Tensor, reference: Tensor, dtype: torch.dtype) -> float:
    """The relative error of a result; `ArithmeticError` if it is too large: a fast wrong result is no figure."""
    error = float((ours.double() - reference.double()).norm() / reference.double().norm())
    if not error <= TOLERANCES[dtype]:
        raise ArithmeticError(f"relative error {error:.3g}, {TOLERANCES[dtype]:.0e} is allowed")
    return error
