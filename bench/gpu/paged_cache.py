"""Paged caches of random contents, far larger than the L2 cache, and tables that pick their blocks at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_SIZE = 16
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
_AT_ONCE = 2**28
"""Elements that are made at a time."""


class PagedCache:
    """Keys and values of many sequences.

    Args:
        num_blocks: of 16 tokens.
        kv_heads, head_size: of the model.
        kind: of `DTYPES`.
        device: where.
    """

    def __init__(self, num_blocks: int, kv_heads: int, head_size: int, kind: str, device: torch.device) -> None:
        shape = (num_blocks, BLOCK_SIZE, kv_heads, head_size)
        self.key, self.value = (_random(shape, DTYPES[kind], device) for _ in range(2))
        self.key_scale: Tensor | None = None
        self.value_scale: Tensor | None = None
        if self.key.dtype.itemsize == 1:
            largest = 127 if self.key.dtype == torch.int8 else 448
            self.key_scale, self.value_scale = (
                torch.rand(shape[:3], device=device).add_(2.0).div_(largest) for _ in range(2)
            )

    @property
    def scales(self) -> dict[str, Any]:
        """As keyword arguments of the kernels."""
        return {"key_scale": self.key_scale, "value_scale": self.value_scale}

    def tables(self, num_sets: int, num_seqs: int, context: int) -> Tensor:
        """Block tables `[num_sets, num_seqs, blocks]`; no block is in two places unless there are too few."""
        wanted = num_sets * num_seqs * -(-context // BLOCK_SIZE)
        turns = -(-wanted // len(self.key))
        blocks = torch.cat([torch.randperm(len(self.key), device=self.key.device) for _ in range(turns)])
        return blocks[:wanted].view(num_sets, num_seqs, -1)


def bytes_per_token(kv_heads: int, head_size: int, kind: str) -> int:
    """Of keys and values, with the factors of a quantized cache."""
    itemsize = DTYPES[kind].itemsize
    return 2 * kv_heads * (head_size * itemsize + (4 if itemsize == 1 else 0))


def _random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers around 1 if they are floats, spread over their range if they are to be scaled."""
    out = torch.empty(shape, dtype=dtype, device=device)
    for part in out.view(-1).split(_AT_ONCE):
        if dtype == torch.int8:
            part.random_(-127, 128)
        elif dtype.itemsize == 1:
            part.copy_(torch.randn(len(part), device=device).mul_(100).clamp_(-448, 448))
        else:
            part.normal_()
    return out
