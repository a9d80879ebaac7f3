"""Where kernels are tested, and how near a result must be to its twin's."""

from __future__ import annotations

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCES = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""By the type of the inputs: what rounding and sums in another order may make of values around 1."""
DTYPES = [dtype for dtype in TOLERANCES if DEVICE.type == "cuda" or dtype != torch.bfloat16]
"""Triton's interpreter cuts bfloat16 off where GPUs round, and its products of bfloat16 are wrong."""


def assert_same(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    """Same type, shape and, within the tolerance of `dtype`, values."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
