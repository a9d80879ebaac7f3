"""Attention on the CPU: the compiled kernels against torch's, decodes and prompts.

Milliseconds per layer of the best of several runs that take turns, and the ratio. 32 query and 8 key/value heads of 64.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache
from corellm.attention.cpu import CpuAttention
from corellm.system.process import usable_cpus
from corellm_kernels.cpu.backend import CompiledAttention

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 64, 16
DECODES = ((1, 2048), (8, 510), (32, 278), (32, 1000))
PROMPTS = ((1, 256), (8, 256), (1, 2048))
"""Numbers of sequences, and their tokens."""


def best(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Milliseconds of the fastest run of each."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats + 1):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [1e3 * min(times[1:]) for times in seconds]


def step(num_seqs: int, length: int, new: int, dtype: torch.dtype) -> Callable[[AttentionBackend], object]:
    """A step with the last `new` of `length` tokens of each of `num_seqs` sequences, in scattered blocks."""
    per_seq = -(-length // BLOCK)
    tables = (torch.randperm(num_seqs * per_seq) + 1).view(num_seqs, per_seq)
    cache = LayerCache(*(torch.randn(num_seqs * per_seq + 1, BLOCK, KV_HEADS, HEAD_SIZE).to(dtype) for _ in range(2)))
    at = torch.arange(length - new, length)
    metadata = AttentionMetadata(
        num_decodes=num_seqs if new == 1 else 0,
        query_lens=[new] * num_seqs,
        seq_lens=[length] * num_seqs,
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32) * new,
        seq_lens_tensor=torch.full((num_seqs,), length, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=(tables[:, at // BLOCK] * BLOCK + at % BLOCK).flatten(),
    )
    q = torch.randn(num_seqs * new, HEADS, HEAD_SIZE).to(dtype)
    k, v = (torch.randn(num_seqs * new, KV_HEADS, HEAD_SIZE).to(dtype) for _ in range(2))
    return lambda backend: backend.forward(AttentionCall(q, k, v, 0.125), cache, metadata)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="torch threads (default: all usable)")
    parser.add_argument("--repeats", type=int, default=15, help="runs per figure, the best counts (default 15)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if missing := CompiledAttention.unsupported(torch.device("cpu"), torch.float32):
        parser.exit(1, f"{missing}\n")
    print(f"attention of one layer, {args.threads} threads")
    print(f"{'':10}{'dtype':10}{'sequences x tokens':>20}{'torch ms':>10}{'compiled ms':>13}{'ratio':>8}")
    with torch.inference_mode():
        for kind, sizes in (("decode", DECODES), ("prompt", PROMPTS)):
            for dtype in (torch.float32, torch.bfloat16):
                for num_seqs, length in sizes:
                    run = step(num_seqs, length, 1 if kind == "decode" else length, dtype)
                    torch_ms, own_ms = best(
                        [partial(run, CpuAttention()), partial(run, CompiledAttention())], args.repeats
                    )
                    name, size = str(dtype).removeprefix("torch."), f"{num_seqs} x {length}"
                    print(f"{kind:10}{name:10}{size:>20}{torch_ms:>10.2f}{own_ms:>13.2f}{torch_ms / own_ms:>7.1f}x")


if __name__ == "__main__":
    main()
