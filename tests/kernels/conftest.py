"""Without a GPU kernels run in Triton's interpreter, on the CPU; asked for before a kernel's module is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
