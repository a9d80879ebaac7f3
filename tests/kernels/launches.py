"""What is compiled ahead of time: launches in the shapes that models have, on tensors of the CPU that hold nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from corellm_kernels.gpu.activations import gelu, gelu_and_mul, silu_and_mul
from corellm_kernels.gpu.head_norms import norm_heads
from corellm_kernels.gpu.logits import edited
from corellm_kernels.gpu.merging import merge_rows
from corellm_kernels.gpu.norms import layer_norm, rms_norm
from corellm_kernels.gpu.paged_decode import paged_decode
from corellm_kernels.gpu.paged_prefill import paged_prefill
from corellm_kernels.gpu.rotary import rotate_and_cache, write_cache
from corellm_kernels.gpu.sampling import sample


def half(*shape: int) -> Tensor:
    """A bfloat16 tensor."""
    return torch.empty(shape, dtype=torch.bfloat16)


def decode(
    sequences: int,
    heads: int,
    kv_heads: int,
    size: int,
    *,
    cache: torch.dtype = torch.bfloat16,
    block_size: int = 16,
    softcap: float | None = None,
    sinks: bool = False,
) -> Callable[[], None]:
    """One decode step at a context of up to 4096 tokens."""

    def launch() -> None:
        blocks = torch.empty(9, block_size, kv_heads, size, dtype=cache)
        scales = None if cache.itemsize > 1 else torch.empty(9, block_size, kv_heads)
        tables = torch.zeros(sequences, 4096 // block_size, dtype=torch.int64)
        paged_decode(
            half(sequences, heads, size), blocks, blocks, tables, torch.zeros(sequences, dtype=torch.int32),
            half(sequences, heads, size), scale=0.1, key_scale=scales, value_scale=scales, softcap=softcap,
            sinks=half(heads) if sinks else None,
        )  # fmt: skip

    return launch


def prefill(
    heads: int,
    kv_heads: int,
    size: int,
    *,
    cache: torch.dtype = torch.bfloat16,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    two_way: bool = False,
    uncut: bool = False,
) -> Callable[[], None]:
    """Two chunks of prompts in blocks of 16."""

    def launch() -> None:
        blocks = torch.empty(9, 16, kv_heads, size, dtype=cache)
        scales = None if cache.itemsize > 1 else torch.empty(9, 16, kv_heads)
        lens, starts = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        paged_prefill(
            half(512, heads, size), blocks, blocks, torch.zeros(2, 256, dtype=torch.int64), lens, starts,
            half(512, heads, size), scale=0.1, sliding_window=window, key_scale=scales, value_scale=scales,
            softcap=softcap, sinks=half(heads) if sinks else None,
            visible_lens=torch.zeros(512, dtype=torch.int32) if two_way else None,
            span_starts=torch.zeros(512, dtype=torch.int32) if uncut else None,
        )  # fmt: skip

    return launch


def head_norms(heads: int, kv_heads: int, size: int) -> Callable[[], None]:
    """Norms of the heads of eight tokens' projections."""

    def launch() -> None:
        projected = half(8, heads + 2 * kv_heads, size)
        norm_heads(projected[:, :heads], projected[:, heads : heads + kv_heads], half(size), half(size), 1e-6, 1e-6)

    return launch


def sampling(rows: int, vocab: int, dtype: torch.dtype = torch.bfloat16) -> Callable[[], Tensor]:
    """Rows with every parameter."""

    def launch() -> Tensor:
        doubles = torch.ones(rows, dtype=torch.float64)
        top_k = torch.zeros(rows, dtype=torch.int32)
        return sample(torch.empty(rows, vocab, dtype=dtype), doubles, top_k, doubles, doubles, doubles)[0]

    return launch


def editing(rows: int, vocab: int) -> Callable[[], Tensor]:
    """Rows with a mask, additions and penalties."""

    def launch() -> Tensor:
        entries = SimpleNamespace(
            token_ids=torch.zeros(9, dtype=torch.int64),
            values=torch.ones(9),
            offsets=torch.zeros(rows + 1, dtype=torch.int64),
        )
        edits = SimpleNamespace(
            allowed=torch.ones(rows, -(-vocab // 32), dtype=torch.int32),
            allowed_rows=torch.zeros(rows, dtype=torch.int64),
            added=entries, seen=entries, penalties=torch.ones(3, rows),
        )  # fmt: skip
        return edited(half(rows, vocab), edits)

    return launch


def rotation(
    heads: int, kv_heads: int, size: int, rotary: int | None = None, *,
    cache: torch.dtype = torch.bfloat16, sections: tuple[int, int, int] | None = None,
) -> Callable[[], None]:  # fmt: skip
    """The rotation and the write of 8 tokens of one projection; the write alone where `rotary` is 0."""

    def launch() -> None:
        whole = half(8, heads + 2 * kv_heads, size)
        query, key, value = whole.split([heads, kv_heads, kv_heads], dim=1)
        blocks = torch.empty(9, 16, kv_heads, size, dtype=cache)
        scales = None if cache.itemsize > 1 else torch.empty(9, 16, kv_heads)
        slots = torch.zeros(8, dtype=torch.int64)
        if rotary == 0:
            write_cache(key, value, blocks, blocks, slots, key_scale=scales, value_scale=scales)
            return
        angles = half(*([3] if sections else []), 8, rotary or size)
        rotate_and_cache(
            query, key, value, angles, angles, blocks, blocks, slots,
            key_scale=scales, value_scale=scales, sections=sections,
        )  # fmt: skip

    return launch


LAUNCHES: dict[str, Callable[[], object]] = {
    "prefill, 32 heads of 128": prefill(32, 32, 128),
    "prefill, 32/8 heads of 128": prefill(32, 8, 128),
    "prefill, 32/8 heads of 128, int8": prefill(32, 8, 128, cache=torch.int8),
    "prefill, 32 heads of 64": prefill(32, 32, 64),
    "prefill, 32 heads of 80": prefill(32, 32, 80),
    "prefill, 16/2 heads of 256": prefill(16, 2, 256),
    "prefill, 16/8 heads of 256, capped": prefill(16, 8, 256, softcap=50.0),
    "prefill, 64/8 heads of 64, sinks": prefill(64, 8, 64, window=128, sinks=True),
    "prefill, 8/4 heads of 256, both ways": prefill(8, 4, 256, window=1024, two_way=True),
    "prefill, 8/4 heads of 256, spans uncut": prefill(8, 4, 256, window=4096, softcap=50.0, two_way=True, uncut=True),
    "decode, 1 x 32 heads of 128": decode(1, 32, 32, 128),
    "decode, 64 x 32/8 heads of 128": decode(64, 32, 8, 128),
    "decode, 8 x 32/8 heads of 128, int8": decode(8, 32, 8, 128, cache=torch.int8),
    "decode, 8 x 32/8 heads of 128, fp8": decode(8, 32, 8, 128, cache=torch.float8_e4m3fn),
    "decode, 64 x 32 heads of 80": decode(64, 32, 32, 80),
    "decode, 8 x 16/2 heads of 256": decode(8, 16, 2, 256),
    "decode, 8 x 16/8 heads of 256, capped": decode(8, 16, 8, 256, softcap=50.0),
    "decode, 8 x 64/8 heads of 64, sinks": decode(8, 64, 8, 64, sinks=True),
    "decode, 8 x 32/8 heads of 64, blocks of 256": decode(8, 32, 8, 64, block_size=256),
    "RMSNorm of 4096": lambda: rms_norm(half(8, 4096), half(4096), 1e-5),
    "RMSNorm of 4096 with residual": lambda: rms_norm(half(8, 4096), half(4096), 1e-5, residual=half(8, 4096)),
    "RMSNorm of heads of 128": lambda: rms_norm(half(8, 32, 128), half(128), 1e-6),
    "RMSNorm of 32/8 heads of 128 in place": head_norms(32, 8, 128),
    "LayerNorm of 2560 with residual": lambda: layer_norm(
        half(8, 2560), half(2560), half(2560), 1e-5, residual=half(8, 2560)
    ),
    "rotation, 32/8 heads of 128": rotation(32, 8, 128),
    "rotation, 32 heads of 128": rotation(32, 32, 128),
    "rotation, 32/8 heads of 128, int8": rotation(32, 8, 128, cache=torch.int8),
    "rotation, 32/8 heads of 128, fp8": rotation(32, 8, 128, cache=torch.float8_e4m3fn),
    "rotation, 28/4 heads of 128, sections": rotation(28, 4, 128, sections=(16, 24, 24)),
    "rotation, 64 heads of 64, half of them": rotation(64, 64, 64, 32),
    "rotation, 32 heads of 80": rotation(32, 32, 80),
    "rotation, 16/2 heads of 256": rotation(16, 2, 256),
    "cache write, 32 heads of 80": rotation(32, 32, 80, 0),
    "cache write, 32 heads of 128, fp8": rotation(32, 32, 128, 0, cache=torch.float8_e4m3fn),
    "gated SiLU of 14336": lambda: silu_and_mul(half(8, 2 * 14336)),
    "gated GELU of 8192": lambda: gelu_and_mul(half(8, 2 * 8192), "tanh"),
    "GELU of 4304": lambda: gelu(half(8, 4304), "tanh"),
    "GELU of 10240": lambda: gelu(half(8, 10240)),
    "rows of 4096 merged": lambda: merge_rows(half(8, 4096), half(9, 4096), torch.zeros(8, dtype=torch.int32)),
    "best of 151936": lambda: sample(half(8, 151936)),
    "sampling of 151936": sampling(8, 151936),
    "sampling of 32003, float32": sampling(64, 32003, torch.float32),
    "edited logits of 128256": editing(8, 128256),
}

NEEDS_90 = frozenset({"decode, 8 x 32/8 heads of 128, fp8"})
"""Launches with 8-bit floats, which GPUs have since compute capability 8.9."""
