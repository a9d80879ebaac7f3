"""Whether a kernel's result is its twin's, before it is timed: a fast wrong answer is no figure."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""Relative errors, by the type of the inputs."""


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Length of the difference over that of the twin's result; NaN where either holds one."""
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm())


def check(ours: Tensor, theirs: Tensor, tolerance: float) -> float:
    """The relative error.

    Raises:
        ArithmeticError: it is above the tolerance, or not a number.
    """
    error = relative_error(ours, theirs)
    if not error <= tolerance:
        raise ArithmeticError(f"relative error {error:.3g} where {tolerance:.0e} is allowed")
    return error


def poison(*tensors: Tensor) -> None:
    """Fill memory that is to be written: what a kernel leaves out is then NaN."""
    for tensor in tensors:
        tensor.fill_(torch.nan)


def poison_free_memory(like: Tensor, count: int = 4) -> None:
    """The same for memory that a kernel's launcher is going to allocate: of the same size, filled and given back."""
    kept = [torch.full_like(like, torch.nan) for _ in range(count)]
    del kept
