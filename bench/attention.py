"""Decode attention on the CPU: how the backend arranges it, against the reference, one sequence at a time.

Milliseconds per layer of the best of several runs, and the ratio. 32 query and 8 key/value heads of 64.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache
from corellm.attention.cpu import CpuAttention
from corellm.attention.reference import ReferenceAttention
from corellm.worker.process import usable_cpus

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 64, 16


def best(function: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the fastest run."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds)


def decode_step(num_seqs: int, length: int, dtype: torch.dtype) -> Callable[[AttentionBackend], object]:
    """A decode of `num_seqs` sequences of `length` tokens in scattered blocks."""
    per_seq = -(-length // BLOCK)
    tables = (torch.randperm(num_seqs * per_seq) + 1).view(num_seqs, per_seq)
    cache = LayerCache(*(torch.randn(num_seqs * per_seq + 1, BLOCK, KV_HEADS, HEAD_SIZE).to(dtype) for _ in range(2)))
    last = tables[:, -1] * BLOCK + (length - 1) % BLOCK
    metadata = AttentionMetadata(
        num_decodes=num_seqs,
        query_lens=[1] * num_seqs,
        seq_lens=[length] * num_seqs,
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens_tensor=torch.full((num_seqs,), length, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=last,
    )
    q = torch.randn(num_seqs, HEADS, HEAD_SIZE).to(dtype)
    k, v = (torch.randn(num_seqs, KV_HEADS, HEAD_SIZE).to(dtype) for _ in range(2))
    return lambda backend: backend.forward(AttentionCall(q, k, v, 0.125), cache, metadata)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="torch threads (default: all usable)")
    parser.add_argument("--repeats", type=int, default=7, help="runs per figure, the best counts (default 7)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"decode attention, {args.threads} threads")
    print(f"{'dtype':10}{'batch x length':>16}{'reference ms':>14}{'cpu ms':>9}{'ratio':>8}")
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for num_seqs, length in ((1, 2048), (8, 510), (32, 510), (64, 250)):
                step = decode_step(num_seqs, length, dtype)
                slow, fast = (best(partial(step, b), args.repeats) for b in (ReferenceAttention(), CpuAttention()))
                name = str(dtype).removeprefix("torch.")
                print(f"{name:10}{f'{num_seqs} x {length}':>16}{slow:>14.2f}{fast:>9.2f}{slow / fast:>7.1f}x")


if __name__ == "__main__":
    main()
