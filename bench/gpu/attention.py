"""Paged attention: decode against the bytes of its keys and values, prefill against torch's flash attention."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from bench.gpu.results import Run
from bench.gpu.timing import check, milliseconds

BLOCK_SIZE = 16
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


def measure(run: Run) -> None:
    """Check and time every case; what is asked for comes first."""
    heads = ((4, 2, 16),) if run.quick else ((32, 32, 128), (32, 8, 128))
    contexts, batches = ((32,), (2,)) if run.quick else ((16384, 4096), (64, 1, 8))
    for kind in ("fp32", "int8") if run.quick else ("bf16", "int8", "fp8"):
        for shape, context, batch in itertools.product(heads, contexts, batches):
            with run.guard(case := f"decode {kind} {shape[0]}/{shape[1]} batch {batch} context {context}"):
                _decode(run, case, *shape, kind, context, batch)
    prompts = ((1, 24, 0), (2, 8, 16)) if run.quick else ((1, 4096, 0), (1, 16384, 0), (1, 4096, 12288), (8, 1024, 0))
    for (num_seqs, new, prefix), shape in itertools.product(prompts, heads):
        with run.guard(case := f"prefill {shape[0]}/{shape[1]} {num_seqs} x {new} after {prefix}"):
            _prefill(run, case, *shape, num_seqs, new, prefix)


def _cache(run: Run, num_seqs: int, context: int, kv_heads: int, size: int, kind: str) -> tuple[list[Any], Tensor]:
    """Random keys and values `[blocks, 16, kv_heads, size]`, their scales if quantized, and random block tables."""
    blocks, dtype = num_seqs * -(-context // BLOCK_SIZE), DTYPES[kind]
    sides: list[Any] = []
    for _ in ("keys", "values"):
        side = torch.empty(blocks, BLOCK_SIZE, kv_heads, size, dtype=dtype, device=run.device)
        for part in torch.split(side.view(-1), 2**28):  # float32 of everything would not fit
            spread = 100 if dtype.itemsize == 1 else 1
            part.copy_(torch.randn(len(part), device=run.device).mul_(spread).clamp_(-127, 127))
        sides.append(side)
    if dtype.itemsize == 1:
        sides += [torch.rand(sides[0].shape[:3], device=run.device).add_(2).div_(127) for _ in range(2)]
    return sides, torch.randperm(blocks, device=run.device).view(num_seqs, -1)


def _decode(run: Run, case: str, heads: int, kv_heads: int, size: int, kind: str, context: int, batch: int) -> None:
    from corellm_kernels.gpu.paged_decode import paged_decode, paged_decode_reference

    (key, value, *scales), tables = _cache(run, batch, context, kv_heads, size, kind)
    options = {"scale": size**-0.5, **dict(zip(("key_scale", "value_scale"), scales, strict=False))}
    query = torch.randn(batch, heads, size, device=run.device).to(run.dtype)
    out = torch.full_like(query, torch.nan)
    lens = context - torch.randint(0, context // 2, (batch,), device=run.device)  # checked with different lengths
    paged_decode(query, key, value, tables, lens, out, **options)
    some = torch.tensor(sorted({0, batch // 2, batch - 1}), device=run.device)
    expected = torch.empty_like(query[some], dtype=torch.float32)
    paged_decode_reference(query[some], key, value, tables[some], lens[some], expected, **options)
    error = check(out[some], expected, run.dtype)

    lens.fill_(context)
    ms = milliseconds(run, partial(paged_decode, query, key, value, tables, lens, out, **options))
    floor = 1e3 * 2 * batch * context * kv_heads * (size * key.itemsize + (4 if scales else 0)) / run.ceiling("copy")
    run.figure(case, ms=ms, floor_ms=floor, share=floor / ms, error=error)


def _prefill(run: Run, case: str, heads: int, kv_heads: int, size: int, num_seqs: int, new: int, prefix: int) -> None:
    """The ratio is torch's time over ours, on the same inputs in a row; grouped heads as they are, and repeated."""
    from corellm_kernels.gpu.paged_prefill import paged_prefill

    context = prefix + new
    (key, value), tables = _cache(run, num_seqs, context, kv_heads, size, "fp32" if run.quick else "bf16")
    query = torch.randn(num_seqs, new, heads, size, device=run.device).to(run.dtype)
    out = torch.full_like(query, torch.nan)
    lens = torch.full((num_seqs,), context, dtype=torch.int64, device=run.device)
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=run.device) * new
    ours = partial(
        paged_prefill, query.flatten(0, 1), key, value, tables, lens, starts, out.flatten(0, 1), scale=size**-0.5
    )
    rows = [side[tables].flatten(1, 2)[:, :context].transpose(1, 2).contiguous() for side in (key, value)]

    def flash(keys: Tensor, values: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=causal_lower_right(new, context) if prefix else None,
            is_causal=not prefix, enable_gqa=keys.shape[1] < heads,
        )  # fmt: skip

    repeated = [side.repeat_interleave(heads // kv_heads, 1) for side in rows]
    ours()
    error = check(out.transpose(1, 2), flash(*repeated), run.dtype)
    ms = milliseconds(run, ours)
    with sdpa_kernel(SDPBackend.MATH if run.quick else SDPBackend.FLASH_ATTENTION):
        flash_ms = min(milliseconds(run, partial(flash, *inputs)) for inputs in (rows, repeated))
    operations = 4 * num_seqs * heads * size * (new * prefix + new * (new + 1) // 2)
    run.figure(case, ms=ms, ratio=flash_ms / ms, tflop_per_s=operations / ms / 1e9, error=error)
